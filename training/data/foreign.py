"""Text that is not English, not language, or code: to be refused, never continued.

Owns the snippets, which are short and stand for kinds of text. Must not know skills.
"""

from collections.abc import Callable
from typing import Final

from training.data.world import World

_SENTENCES: Final = (
    "Wie geht es dir heute?", "Was ist die Hauptstadt von Frankreich?",
    "Guten Morgen, wie heißt du?", "Kannst du mir helfen?", "Ich möchte einen Kaffee trinken.",
    "Schreibe mir einen Brief.", "Wo ist der Bahnhof?", "Erzähl mir eine Geschichte.",
    "Bonjour, comment ça va?", "Quelle heure est-il?", "Je voudrais un café.", "Où est la gare?",
    "Peux-tu m'aider?", "Écris un poème sur la mer.", "Merci beaucoup, mon ami.",
    "Hola, ¿cómo estás?", "¿Qué hora es?", "¿Dónde está la estación?", "Escribe un cuento corto.",
    "¿Puedes ayudarme?", "Me gusta la música.", "Ciao, come stai?", "Che ora è?",
    "Dove si trova la stazione?", "Scrivi una lettera.", "Olá, tudo bem?", "Onde fica a praia?",
    "Escreva um poema.", "Hoe gaat het met je?", "Waar is het station?", "Jak się masz?",
    "Gdzie jest dworzec?", "Dzień dobry, jak masz na imię?", "Hur mår du?", "Var ligger stationen?",
    "Nasılsın?", "Bugün hava nasıl?", "Привет, как дела?", "Сколько будет два плюс два?",
    "Напиши стихотворение.", "Где находится вокзал?", "Добрый день, помогите мне.", "你好,你是谁?",
    "今天天气怎么样?", "请写一首诗。", "我想喝咖啡。", "二加二等于几?", "こんにちは、元気ですか?",
    "今日は何曜日ですか?", "詩を書いてください。",
    "안녕하세요, 누구세요?", "오늘 날씨 어때요?", "مرحبا كيف حالك؟", "ما هو الوقت الآن؟",
    "שלום, מה שלומך?",
    "नमस्ते, आप कैसे हैं?", "สวัสดีครับ", "Xin chào, bạn khỏe không?", "Γεια σου, τι κάνεις;",
    "Hej, hvordan går det?",
)  # fmt: skip
_LETTERS: Final = (
    "абвгдежзийклмнопрстуфхцчшщыьэюя", "αβγδεζηθικλμνξοπρστυφχψω",
    "的一是不了人我在有他这中大来上国个到说们",
    "あいうえおかきくけこさしすせそたちつてと", "가나다라마바사아자차카타파하",
    "ابتثجحخدذرزسشصضطظعغ", "אבגדהוזחטיכלמנסעפצקרשת",
    "äöüßéèêàçñõåøæłżźćęą", "กขคงจฉชซญดตถทนบปผพ", "अआइईउऊएकखगघचछजट",
)  # fmt: skip
_LATIN: Final = (
    "der", "die", "das", "und", "nicht", "mit", "auf", "ein", "eine", "ist", "war", "haben", "wir",
    "ihr", "sie", "von", "zu", "bei", "nach", "über", "Haus", "Tag", "Jahr", "Zeit", "Stadt", "le",
    "la", "les", "des", "une", "est", "dans", "pour", "avec", "nous", "vous", "ils", "maison",
    "jour", "ville", "livre", "eau", "homme", "femme", "très", "bien", "aussi", "el", "los", "las",
    "una", "es", "en", "por", "con", "para", "nosotros", "casa", "día", "ciudad", "libro", "agua",
    "hombre", "mujer", "muy", "bien", "también", "il", "lo", "gli", "una", "è", "nella", "per",
    "con", "noi", "casa", "giorno", "libro", "acqua", "uomo", "donna", "molto", "bene", "anche",
    "het", "een", "van", "niet", "wij", "huis", "dag", "boek", "water", "man", "vrouw", "goed",
    "ook", "og", "ikke", "med", "hus", "bog", "vand", "och", "inte", "med", "hus", "vatten", "jest",
    "nie", "dom", "dzień", "książka",
)  # fmt: skip
_CODE: Final = (
    "def {a}({b}):\n    return {b} + {n}\n", "for i in range({n}):\n    print({a}[i])\n",
    "import {a}\nfrom {b} import {c}\n",
    "class {A}:\n    def __init__(self, {b}):\n        self.{b} = {b}\n",
    "const {a} = require('{b}');\n{a}.{c}({n});\n",
    "function {a}({b}) {{\n  return {b} * {n};\n}}\n",
    "SELECT {a}, {b} FROM {c} WHERE {a} > {n};\n",
    "#include <{a}.h>\nint main() {{ return {n}; }}\n",
    "<div class=\"{a}\"><p>{b}</p></div>\n", "fn {a}({b}: u32) -> u32 {{ {b} + {n} }}\n",
    "Traceback (most recent call last):\n  File \"{a}.py\", line {n}\n{A}Error: {b}\n",
    "$ {a} --{b}={n} {c}.txt\n", "{a}:\n  {b}: {n}\n  {c}: true\n",
    "if ({a} == null) {{ throw new {A}Exception(\"{b}\"); }}\n",
    "diff --git a/{a}.py b/{a}.py\n-    {b} = {n}\n+    {c} = {n}\n",
    "2026-03-04 10:{n} ERROR {a}: {b} failed ({c})\n",
    "while True:\n    {a} = {b}.pop()\n    if not {a}: break\n",
    "public static void {a}(String[] {b}) {{ }}\n", "let {a} = {b}.map(x => x.{c});\n",
    "git {a} -m \"{b}\" && make {c}\n",
)  # fmt: skip
_FORMS: Final[tuple[Callable[[str], str], ...]] = (str, str, str.lower, str.upper)
_SIGNS: Final = "!@#$%^&*()_+-=[]{}|;:,.<>?/~`\\\"' "
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_EMOJI: Final = "😀😂🎉🔥👍💡🚀❤️🐍🌍✨🤖"


def snippet(world: World, num_lines: int) -> str:
    """Code, logs or markup."""
    return "".join(
        world.pick(_CODE).format(
            a=world.noun().replace(" ", "_"),
            b=world.noun(),
            c=world.noun(),
            A=world.noun().capitalize(),
            n=world.between(1, 99),
        )
        for _ in range(num_lines)
    )


def foreign_text(world: World) -> str:
    """Another language, or text that looks like one."""
    chance = world.random()
    if chance < 0.45:
        return world.new(lambda: _sentence(world), str)
    if chance < 0.7:
        return " ".join(world.pick(_LATIN) for _ in range(world.between(3, 15)))
    letters = world.pick(_LETTERS)
    return _made_of(world, letters, world.between(3, 50), spaces=world.chance(0.6))


def junk(world: World) -> str:
    """Nonsense symbols."""
    chance = world.random()
    if chance < 0.25:
        return _made_of(world, _ALPHABET, world.between(4, 120), spaces=world.chance(0.5))
    if chance < 0.45:
        return _made_of(world, _SIGNS + _ALPHABET, world.between(2, 100), spaces=False)
    if chance < 0.6:
        return _made_of(world, _SIGNS, world.between(1, 30), spaces=False)
    if chance < 0.7:
        return world.pick(_EMOJI) * world.between(1, 8)
    if chance < 0.85:
        return (
            world.pick((world.word(), world.pick(_ALPHABET))) + world.pick((" ", "", "\n"))
        ) * world.between(5, 80)
    return " ".join(
        str(world.between(0, 10 ** world.between(1, 9))) for _ in range(world.between(5, 40))
    )


def _sentence(world: World) -> str:
    sentence = world.pick(_SENTENCES)
    form = world.pick(_FORMS)
    tail = world.pick(("", "", "!", "?", f" {world.name()}", f" {world.place()}"))
    return form(sentence) + tail


def _made_of(world: World, letters: str, length: int, *, spaces: bool) -> str:
    signs = [world.pick(letters) for _ in range(length)]
    if spaces:
        signs = [" " if world.chance(0.18) else sign for sign in signs]
    return "".join(signs)
