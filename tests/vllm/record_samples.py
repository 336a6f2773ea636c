"""Owns tests/vllm/samples: what a real vLLM answers, byte for byte.

Run:  .venv/bin/python tests/vllm/record_samples.py PORT      (a server of servers.py)
Each NAME.txt is the status line, the headers (CRLF) and the body of one answer, with the chunked
framing of the body taken off.  requests.json tells what was asked; its "chunks" are the sizes of
the HTTP chunks, "reads" the sizes of the socket reads in which the answer came.
Ids, times and the merging of tokens into events change from run to run; the shapes don't.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path

import httptools

SAMPLES = Path(__file__).with_name("samples")
CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "import os"}],
    "max_tokens": 6,
    "temperature": 0,
}
TEXT = {"model": "tiny", "prompt": "import os", "max_tokens": 6, "temperature": 0}
RESPONSES = {"model": "tiny", "input": "import os", "max_output_tokens": 6, "temperature": 0}
MESSAGES = CHAT
N2 = {"n": 2, "temperature": 1, "seed": 1}  # n > 1 is refused for greedy sampling
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
RESPONSES_PATH, MESSAGES_PATH = "/v1/responses", "/v1/messages"

REQUESTS: dict[str, tuple[str, str, object]] = {
    "chat": ("POST", CHAT_PATH, CHAT),
    "chat_n2": ("POST", CHAT_PATH, CHAT | N2),
    "chat_logprobs": ("POST", CHAT_PATH, CHAT | {"logprobs": True, "top_logprobs": 2}),
    "chat_stop": ("POST", CHAT_PATH, CHAT | {"max_tokens": 40, "stop": ["e"]}),
    "chat_tools_none": ("POST", CHAT_PATH, CHAT | {"tools": [TOOL], "tool_choice": "none"}),
    "chat_stream": ("POST", CHAT_PATH, CHAT | {"stream": True}),
    "chat_stream_usage": ("POST", CHAT_PATH, CHAT | USAGE),
    "chat_stream_continuous_usage": (
        "POST",
        CHAT_PATH,
        CHAT | {"stream": True, "stream_options": CONTINUOUS},
    ),
    "chat_stream_n2_usage": ("POST", CHAT_PATH, CHAT | USAGE | N2),
    "chat_stream_logprobs": (
        "POST",
        CHAT_PATH,
        CHAT | {"stream": True, "logprobs": True, "top_logprobs": 2},
    ),
    "chat_stream_token_ids": ("POST", CHAT_PATH, CHAT | USAGE | {"return_token_ids": True}),
    "chat_stream_stop": ("POST", CHAT_PATH, CHAT | USAGE | {"max_tokens": 40, "stop": ["e"]}),
    "completions": ("POST", TEXT_PATH, TEXT),
    "completions_n2": ("POST", TEXT_PATH, TEXT | N2),
    "completions_logprobs": ("POST", TEXT_PATH, TEXT | {"logprobs": 2}),
    "completions_echo": ("POST", TEXT_PATH, TEXT | {"echo": True}),
    "completions_stream": ("POST", TEXT_PATH, TEXT | {"stream": True}),
    "completions_stream_usage": ("POST", TEXT_PATH, TEXT | USAGE),
    "completions_stream_token_ids": ("POST", TEXT_PATH, TEXT | USAGE | {"return_token_ids": True}),
    "responses": ("POST", RESPONSES_PATH, RESPONSES),
    "responses_stream": ("POST", RESPONSES_PATH, RESPONSES | {"stream": True}),
    "messages": ("POST", MESSAGES_PATH, MESSAGES),
    "messages_stream": ("POST", MESSAGES_PATH, MESSAGES | {"stream": True}),
    "messages_stop": ("POST", MESSAGES_PATH, MESSAGES | {"max_tokens": 40, "stop_sequences": ["e"]}),
    "messages_count_tokens": (
        "POST",
        "/v1/messages/count_tokens",
        {"model": "tiny", "messages": CHAT["messages"]},
    ),
    "tokenize": ("POST", "/tokenize", {"model": "tiny", "prompt": "import os"}),
    "tokenize_chat": ("POST", "/tokenize", {"model": "tiny", "messages": CHAT["messages"]}),
    "detokenize": ("POST", "/detokenize", {"model": "tiny", "tokens": [395, 266]}),
    "models": ("GET", "/v1/models", None),
    "health": ("GET", "/health", None),
    "version": ("GET", "/version", None),
    "load": ("GET", "/load", None),
    "error_bad_json": ("POST", CHAT_PATH, b'{"model": "tiny", '),
    "error_empty_body": ("POST", CHAT_PATH, b""),
    "error_not_an_object": ("POST", CHAT_PATH, b"[]"),
    "error_wrong_type": ("POST", CHAT_PATH, CHAT | {"max_tokens": "many"}),
    "error_missing_messages": ("POST", CHAT_PATH, {"model": "tiny"}),
    "error_missing_prompt": ("POST", TEXT_PATH, {"model": "tiny", "max_tokens": 2}),
    "error_unknown_model": ("POST", CHAT_PATH, CHAT | {"model": "nope"}),
    "error_unknown_model_stream": ("POST", CHAT_PATH, CHAT | {"model": "nope", "stream": True}),
    "error_too_long": ("POST", TEXT_PATH, TEXT | {"prompt": [7] * 5000}),
    "error_chat_too_long": (
        "POST",
        CHAT_PATH,
        CHAT | {"messages": [{"role": "user", "content": "x y " * 4000}]},
    ),
    "error_max_tokens_too_big": ("POST", CHAT_PATH, CHAT | {"max_tokens": 100000}),
    "error_max_tokens_zero": ("POST", CHAT_PATH, CHAT | {"max_tokens": 0}),
    "error_temperature": ("POST", CHAT_PATH, CHAT | {"temperature": -1}),
    "error_n2_greedy": ("POST", CHAT_PATH, CHAT | {"n": 2}),
    "error_stream_options": ("POST", CHAT_PATH, CHAT | {"stream_options": {"include_usage": True}}),
    "error_tool_choice_auto": ("POST", CHAT_PATH, CHAT | {"tools": [TOOL], "tool_choice": "auto"}),
    "error_messages_unknown_model": ("POST", MESSAGES_PATH, MESSAGES | {"model": "nope"}),
    "error_messages_missing": ("POST", MESSAGES_PATH, {"model": "tiny", "max_tokens": 4}),
    "error_responses_unknown_model": ("POST", RESPONSES_PATH, RESPONSES | {"model": "nope"}),
    "error_unknown_route": ("POST", "/v1/nothing", {"model": "tiny"}),
    "error_wrong_method": ("GET", CHAT_PATH, None),
}


# Ended by the server in the middle (POST /pause?mode=abort), as SIGTERM ends them too.
ABORTED: dict[str, tuple[str, str, object]] = {
    "chat_stream_abort": ("POST", CHAT_PATH, CHAT | USAGE | {"max_tokens": 2000}),
    "completions_stream_abort": ("POST", TEXT_PATH, TEXT | {"max_tokens": 2000, "stream": True}),
    "completions_abort": ("POST", TEXT_PATH, TEXT | {"max_tokens": 2000}),
}


class Answer:
    """Collects one response while its bytes come in."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.chunks: list[int] = []
        self.reads: list[int] = []
        self.head = b""
        self.finished = False
        self.size = 0

    def on_chunk_header(self) -> None:
        self.size = 0

    def on_body(self, body: bytes) -> None:
        self.body += body
        self.size += len(body)

    def on_chunk_complete(self) -> None:
        if self.size:
            self.chunks.append(self.size)

    def on_message_complete(self) -> None:
        self.finished = True


def ask(port: int, method: str, path: str, body: object) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    if method == "POST":
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    answer, raw = Answer(), bytearray()
    parser = httptools.HttpResponseParser(answer)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(head.encode() + b"\r\n" + data)
        while not answer.finished:
            piece = sock.recv(1 << 20)
            if not piece:
                raise ConnectionError(f"{method} {path}: the connection ended early")
            raw += piece
            answer.reads.append(len(piece))
            parser.feed_data(piece)
    answer.head = bytes(raw.partition(b"\r\n\r\n")[0])
    return answer


def main() -> None:
    port = int(sys.argv[1])
    SAMPLES.mkdir(exist_ok=True)
    index = {}
    for name, (method, path, body) in (REQUESTS | ABORTED).items():
        if name in ABORTED:
            threading.Timer(0.03, ask, (port, "POST", "/pause?mode=abort", None)).start()
        answer = ask(port, method, path, body)
        if name in ABORTED:
            time.sleep(0.2)
            ask(port, "POST", "/resume", None)
        data = answer.head + b"\r\n\r\n" + bytes(answer.body)
        (SAMPLES / f"{name}.txt").write_bytes(data)
        shown = body.decode() if isinstance(body, bytes) else body
        if len(json.dumps(shown)) > 2000:
            shown = "(long)"
        index[name] = {"method": method, "path": path, "body": shown}
        index[name] |= {"chunks": answer.chunks, "reads": answer.reads}
        print(f"{name}: {answer.head.splitlines()[0].decode()}, {len(answer.body)} bytes")
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in index.items())
    (SAMPLES / "requests.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
