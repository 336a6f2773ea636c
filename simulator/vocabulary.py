"""The emulated tokenizer's vocabulary as text. Owns the lists and their order (which fixes the ids); splits nothing.

Words are the commonest of English chat answers, most frequent first; a word's piece carries a leading space. In the
other two lists `_` stands for a leading space. Adding to a list's end moves the ids of the lists after it, so two
instances that continue each other's answers must run the same file.
"""

WORDS = """\
the and a to of in is for that you or with on can are your it as be by have from an this one their some not me more
like my about we at which time will such help has if given was they other but would using how use do into been new any
our them its make may up also all should need used each there what these who fall between different am his when
information might people including way data then through two create take number many game provide first out work world
water code so well where system find give based than over most day list learning could language while human specific
get had often example process life experience social know best were let name project content during music just high
following around us making keep want text word home user table years light words function own good story development
few large complex potential until questions end answer only her made food book software write without down no trying
minutes does known both dishes email before being recipe love various product he set simple cultural small top year
power great improve ensure history business person question things movie possible sure model skills popular key type
description value explain lead even related energy see understanding meaning problem step place search important
significant ideas feel points media per learn add sentence online future art team interested include writing quality
program digital long systems video state character still community focus become back role common heat tell unique
support come natural city consider interesting understand paper sense color tasks post body approach knowledge order
experiences several health him another same must within characters play local design open together events idea company
essential short share factors cat public style she customer quote film better think hope input tools performance part
job resources cost car start numbers less due cup reduce marketing case models now research dust traditional topic oil
family single range series every ways much students impact machine right hours offer explanation technology free too
individuals why amount build programming features develop friends second form multiple creating provided thinking
needs challenges steps strong options window likely low additional area guests summary something others management
change return industry projects computer environment old salt issues try those training space temperature total
solution after analysis method enjoy areas living self file current because looking heart personal level look
materials someone required building uses deep professional sound script brief here times values called access main
true needed situation working necessary drinks means describe relevant hand examples attention positive provides bites
host available go found response next explore modern result structure point communication average please sugar takes
able audience activities sources clear brand science mind against never easy service show task exercise rather
creative guide helps target certain article run services did house off left behavior tips levels applications
gathering goals shape last early leading ready increase problems classic depending effective address recipes real
influence very elements prevent present news started side test meeting air market architecture works blood individual
ability going say line importance always review ice travel medium daily education yourself efficient tool estimate
growth benefits conversation control warm challenge image culture users perfect concept types basic techniques black
score release government date economic games correct three interest stay conditions website developed break chopped
platforms names pepper designed document opportunities plan platform terms thought require source statistical
expecting practice property evidence under messages security solar customers mixture children speed today course trip
strategies dish etc study determine flavor field decision algorithm errors engaging friend ingredients results ask
tone relationships changes journey products believe strategy note efficiency surface action safety instead stress
generate similar maintain care away century images context novel providing starting higher cook worth face success
phone relationship technologies choice physical identify perform distance command items typically trade financial
subject global avoid print allows books event rate clean considered store lot effects cooking operations reasoning fun
size network days risk dough details concerns offers check group general processing song night particularly nature
overall languages cause weather cream methods money eyes eat red title reader player whole led past production fuel
atmosphere movement array happy five cheese section full yet challenging written whether topics least difficult really
fresh message potentially involved achieve sky perspective sentences reach hour sun climate progress requirements
components base visit focused successful created solutions hard moon man format makes beautiful bought especially
taking feedback coffee calculate read suitable prime goal setting thoughts act cultures ball serve column promote meet
theory ever buy named allowing pan formula editing web account room choose error smaller pane actions across
approximately forward significantly patterns chat sequence insights stars location above distribution requires rights
forms follow further includes visual winter among suggest dark garden turn views version memory reviews teaspoon app
difference spirit string restaurant players blue practices term bowl throughout taste vary drive critical effectively
hold usually contract ground quickly safe involves lives detailed actually adjust sharing processes differences famous
states dry connection negative reducing crime powerful prepare playing bit communities decisions innovation rest
studies smooth taken windows universe widely bring stories walk engine lower apple carefully feet healthy moment
extract coding continue regular price sauce spread path special patient gas shop directly square along length allow
scientific comes programs exploring position stunning eggs far brown sets cover complete algorithms desired colors
wide period butter again manage contains fighting student protein activity bad prices added foods fit query template
engage statement artists track variety suggestions humans since link keywords fact having mix advanced consequences
capture issue garlic little lack aspects helpful purpose quantum teams close gift costs solve electric interview false
apply letter button existing discuss center baking diseases investment element shall ancient environmental crucial egg
commercial concepts hot affect sample photography fascinating companies season behind built species becomes career
songs population kind original fight class rich mental private jazz limited server beauty feelings juice mention
golden skin traffic intelligence capital integer policy consumer remote movies match rise cross remove emotions
application parts green pen channel gentle separate delicious background emotional themselves scenario stand chicken
advice feeling virtual policies towards reasons months structures assume blog secure pattern functions plant presence
combination gone done businesses ensuring int equal enough prove reading signal call connect longer join receive
speech ecommerce schools front half concise shows cases request sweet directions exact dialogue organization conflict
described miles markets improving gain cats white option seen chain appreciate creation essay cool extra primary
objects implications final cups million balance sleep comfortable engineering instructions object page beef beliefs
planning fully ones became plastic pieces oven sales analyze plot once town highly regulations innovative healthcare
mean valuable capabilities strings diverse seeds aware damage expertise young move played weight direct hotel
everything faster phrases pm tweet browser streaming changed computing region author reality columns rules already
filled dynamic conscious categories consistent live doing routine budget grow branch wants output joint meat supply
sounds represents feature remember save handle running becoming claim steak sea loss respond recent generally
associated contribute favorite enhance cloud sustainable pig productivity consumption appropriate office scene lines
kids expectations third serving saw circumstances countries situations causes members vocabulary said developing
interests conclusion duration stakeholders testing fields adapt voice published trends vegetables war rough major
initiatives sign glass itself python got genre material increased equation pressure introduce anxiety dance finds
cannot prioritize historical greater queue easier flat evening popularity explores friendship emissions poem took apps
literature considering jobs dinner star flour status tree comprehensive island actual credit graduate rates networks
instance changing active figure thing listening heavy protect civilization existence finding devices teaching
selection court row dream death double modules random loop began hit planets generated smart preferences matter usage
typical videos presentation pages treatment alternative reason sunlight disease mountain formal inspired rock readers
head land responsible plants stock carbon themes tax larger minute reliable galaxy covers school decrease traits layer
learned adding direction returns organizations properties put screen technological recently touch proper factor risks
upload commands prefer force continued places respect convey mathematics puzzle specifically onion cells coming
identity brother films photos category walking exploration gaming tests mouse containing medicine outside located eye
mood vibrant exercises kitchen opportunity expert technical schedule four websites camera yeah filling shared comfort
discover mobile violence site quarter files combine cooked introduction lyrics display wrote rewrite letters beat
offering society suggests historic memories standards principles served big guidance involve hidden recommended
appearance temperatures gasoline accessible landscape backlinks token blockchain basics slightly replace economy laws
artificial secrets housing included item reference groups seconds heard perspectives facts equipment planet framework
growing ink cash collaboration era eventually herbs simply influenced courses cold vast enjoyed creativity answers
everyone variables properly wood evolution fix experiment discussing styles soft causing detail metal upon report
certificates leaving pot near manager band avatar snake passion effort tablespoons blend frequency bug conflicts slow
generation tech threading piece informed law musical north mathematical engagement watch win inches bread prepared
outdoor ultimately compare robotics helped largest expression promoting latest complexity assistants stable storage
produce official scenarios biology record starts women encourage stop effect contents follows plans fashion networking
friendly dog easily leaves ideal transfer steel bottle lessons physics talk cell lift vector plate roll truly
communicate environments indicate manner fair efforts tablespoon interface came heating responses investors avocado
sides enter useful phrase gonna later
"""

CAPITALISED = """\
_I _The The _This _A What How _If _It In _Here _You _In Write Here _Can You _Use _What _We _Your _However _How _For
This Can _Python To _They We Please Another As Step Why _To If _New _As _He Hi _These _Try Your _Add _While _English
Give Make It Create Use For _When _Let When _Some _Create _World And _Make _Path _No Person Is No So _By These _There
_Please There Remember _Be _Learning Provide Answer _And _One _Our _With _Content Let _Game _Is Now Note _My Are
_Consider _Time Using Based By Design _Take _Career Do _Write _Management Explain _Check Given However _Using Who
_Address _Music _Good Example _Social _Start Tips My _Person _But List _Germany But _Do Ingredients _Design _Are
_National _Place _Data _Keep Instructions _City Hello Non _After _She Out Title User _Calculate Keep _Set _First
_Final _State _Sentence With _From _Also _Two _Development _Develop _Great While
"""

FRAGMENTS = """\
what based the step com day write like quality for end https optional friendly time print python level can making how
email art string and from name powered date being celda shot related www minute driven year arr stack input term value
code node free def results json source get explain car solving mon training use specific in er on es ti en _s _c re
ing al an _p ar at or ed tion st ic le _d it _m _t ro _f ent et _b _e la om ur ct is ve _re ation ce ra lo un il ly as
_g ol ri _h ec _w id us ers el ul _st _con ate ut ess ch im ig ag ru ment _n he ab ot am _o ter _pro _ex ity pp ver _M
_com od _r _l _P ma qu _T ow est _v ff tic ion em ck stru ist um ir ad th _E ain ak eta os _D tions ht tive struct _ch
ci iz ect ant age _W ep _co ine ort ay und bo her _su op ies _G _H iv ure ence _en all ations _sp _sh orm ear _comp
ance ie per pt our ss du _N if _im ip se able ard ac _ac _al red ast _ad ight _lo ib ical _le ok les ress _res _O ill
ou _th ous ud enc ary ans iti _ro _dis ap _exp low lay ated _ar _cont res ide lic oc av _se _inter _J ual ire are tim
_tra ge ry ork _St one ark ind ons _j ens ack _mo ish ust co ice ase ll _imp ive ates _em ign ts _pl ord enti _sc _U
_k ful ach up _un ue act form _cons ating ility tiv ally ub ric ef ction old ments ere ite ors cess ong ell erv ew bs
ents _eff hy tain ult ms gg ici _la _Ch _K yp _tr gra ities _inc its di _gen vel cri ost ning _sa log _qu ake ory int
ative _V _comm _col ings ile ont _rep ght eg ber ize Th ise _inv gh ns ex me _reg _ev _cre ari ech ese sp _pre ula St
row li sh no iew ble
"""
