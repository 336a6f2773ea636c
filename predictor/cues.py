"""Words by which people tell how long an answer they want, in eight languages. Owns the lists and nothing that reads.

All are UTF-8 in lower case as `features.words_of` makes them; letters outside ASCII keep their case there."""

from __future__ import annotations

from enum import IntEnum

CHARACTERS = 0.6  # a Han character counts as this many words


class Cue(IntEnum):
    BRIEF = 0
    LONG = 1
    CODE = 2
    LIST = 3
    WRITE = 4
    EXPLAIN = 5
    CHOOSE = 6
    TRANSLATE = 7
    TABLE = 8


def _bytes(words: str) -> list[bytes]:
    return words.encode().split()


_BY_CUE = {
    Cue.BRIEF: "brief briefly short shortly concise concisely succinct tldr summarize summarise summary kurz knapp "
    "bref brièvement court courte breve brevemente corto resumen riassunto curto resumo resume zusammenfassen",
    Cue.LONG: "detailed detail thorough thoroughly comprehensive essay article story blog chapter report long in-depth "
    "ausführlich aufsatz geschichte détaillé dissertation histoire detallado ensayo historia cuento saggio storia "
    "dettagliato ensaio detalhado história",
    Cue.CODE: "code python javascript java function program script sql html css regex implement algorithm class bash "
    "programm funktion fonction función funzione função código",
    Cue.LIST: "list ideas examples steps ways tips reasons names suggest recommend recommendations liste ideen liste "
    "lista ideas idee ideias beispiele exemples ejemplos esempi exemplos",
    Cue.WRITE: "write create generate compose draft make schreibe erstelle écris rédige escribe crea scrivi escreva",
    Cue.EXPLAIN: "explain describe how why compare difference discuss erkläre warum wie explique expliquer pourquoi "
    "comment explica cómo porqué spiega perché como porque",
    Cue.CHOOSE: "yes true false classify choose correct answer option category sentiment label ja nein oui non sí",
    Cue.TRANSLATE: "translate translation rewrite paraphrase convert edit proofread grammar übersetze traduis traduire "
    "traduce traduci traduza reescribe",
    Cue.TABLE: "table spreadsheet csv json xml yaml excel tabelle tableau tabla tabella tabela",
}
CUES: dict[bytes, int] = {word: int(cue) for cue, words in _BY_CUE.items() for word in _bytes(words)}
_BY_UNIT = (
    "word words wörter worten wörtern mot mots palabra palabras parola parole palavra palavras слов слова",
    "sentence sentences satz sätze sätzen phrase phrases frase frases oración oraciones frasi line lines предложений",
    "paragraph paragraphs absatz absätze absätzen paragraphe paragraphes párrafo párrafos paragrafo paragrafi page "
    "pages seiten paragraph parágrafo parágrafos",
    "items examples ideas tips ways reasons steps bullet bullets points questions names things facts beispiele "
    "exemples ejemplos esempi exemplos ideen idées idee ideias",
)
UNITS: dict[bytes, int] = {word: unit for unit, words in enumerate(_BY_UNIT) for word in _bytes(words)}
_BY_NUMBER = {
    1: "one single a ein eine einem einer un une uno una um uma один одно",
    2: "two couple zwei deux dos due dois duas два",
    3: "three few drei trois tres tre três три",
    4: "four vier quatre cuatro quattro quatro четыре",
    5: "five several fünf cinq cinco cinque пять",
    6: "six sechs seis sei",
    7: "seven sieben sept siete sette sete",
    8: "eight acht huit ocho otto oito",
    9: "nine neun neuf nueve nove",
    10: "ten zehn dix diez dieci dez десять",
    12: "twelve dozen zwölf douze doce dodici doze",
    20: "twenty zwanzig vingt veinte venti vinte",
    50: "fifty fünfzig cinquante cincuenta cinquanta cinquenta",
    100: "hundred hundert cent cien cento cem",
}
NUMBERS: dict[bytes, int] = {word: number for number, words in _BY_NUMBER.items() for word in _bytes(words)}
