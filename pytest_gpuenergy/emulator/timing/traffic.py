"""The accesses of a kernel that the timing model needs: counted by a run, or found in the text.

A compiler leaves some loads in branches of their own. A conditional load,
``if (inside) value = data[index];``, becomes a predicated instruction if its address has been
computed before; many such loads can be in flight at a time. If the address still takes a division,
the load becomes a branch, and what follows waits for the value. NVRTC 13.5 does so for sm_90.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_gpuenergy.emulator.translation.cuda_syntax import find_definition

# How branched loads are found.
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d\w*|[=!<>]=|\S")
_POINTER = re.compile(r"\*\s*(?:const\s+|__restrict__\s+)*(\w+)\s*(?:,|$)")
_BARRIER = "__syncthreads"
_CLOSING = {"(": ")", "[": "]", "{": "}"}

# How private arrays are found.
_WORDS = {
    **dict.fromkeys(("char", "bool", "int8_t", "uint8_t"), 0.25),
    **dict.fromkeys(("half", "short", "int16_t", "uint16_t", "__half", "__nv_bfloat16"), 0.5),
    **dict.fromkeys(("float", "int", "unsigned", "uint", "int32_t", "uint32_t", "half2"), 1.0),
    **dict.fromkeys(("double", "int64_t", "uint64_t", "float2", "int2"), 2.0),
    **dict.fromkeys(("float4", "int4", "uint4", "double2"), 4.0),
}
_ARRAY = re.compile(
    r"^[ \t]*(?:alignas\(\d+\)[ \t]*)?(?:unsigned[ \t]+)?(?P<type>\w+)[ \t]+(?P<name>\w+)[ \t]*"
    r"(?P<extents>(?:\[[ \t]*\d+[ \t]*\])+)[ \t]*(?:=|;)",
    re.MULTILINE,
)
_BRACE_OR_ARRAY = re.compile(rf"(?P<brace>[{{}}])|{_ARRAY.pattern}", re.MULTILINE)
_VECTOR_WORDS = 4.0


@dataclass(frozen=True)
class Traffic:
    """The memory accesses of an average block of one launch.

    Attributes:
        global_read_bytes: the bytes read from tensors. A repeated read counts again unless the
            compiler of the host keeps the value in a register.
        global_write_bytes: the bytes written to tensors; an atomic update counts as a store.
        shared_read_bytes: the bytes read from shared memory, counted in the same way.
        shared_write_bytes: the bytes written to shared memory, counted in the same way.
        barriers: the block-wide barriers passed.
        load_intervals: the intervals between barriers in which tensors are loaded.
        static_shared_bytes: the static shared memory.
        global_loads: the warp-wide loads of tensors. A word that a thread loaded shortly before,
            without a barrier in between, is assumed to be in a register and counts once.
        branched_loads: the loads of tensors in branches of their own, according to the text.
        global_stores: the warp-wide stores to tensors.
        global_sectors: the sectors of 32 bytes that these loads and stores touch, summed over them.
        l2_sectors: the same without the sectors that the block reads again, which its L1 holds.
        contended_updates: the atomic updates of the busiest kilobyte of global memory in the whole
            launch. Lanes that update the same word count separately.
        shared_accesses: the warp-wide accesses to shared memory, with loads counted as above.
            Accesses to neighbouring words that a compiler merges into up to 16 bytes count once.
        shared_wavefronts: the parts of these accesses, each of at most 128 bytes, without bank
            conflicts and without two atomic updates of the same word.
        private_words: the 4-byte words in a thread's own arrays, according to the text.
        active_warps: the warps that would share all accesses if each made as many as the busiest
            one; 0 if they are not known.
    """

    global_read_bytes: float = 0.0
    global_write_bytes: float = 0.0
    shared_read_bytes: float = 0.0
    shared_write_bytes: float = 0.0
    barriers: float = 0.0
    load_intervals: float = 0.0
    static_shared_bytes: float = 0.0
    global_loads: float = 0.0
    branched_loads: float = 0.0
    global_stores: float = 0.0
    global_sectors: float = 0.0
    l2_sectors: float = 0.0
    contended_updates: float = 0.0
    shared_accesses: float = 0.0
    shared_wavefronts: float = 0.0
    private_words: float = 0.0
    active_warps: float = 0.0

    @property
    def total_bytes(self) -> float:
        """The bytes of tensors and of shared memory that are read and written."""
        return (
            self.global_read_bytes
            + self.global_write_bytes
            + self.shared_read_bytes
            + self.shared_write_bytes
        )


def branched_share(source: str, entry: str) -> float:
    """Return the share of branched loads among the loads by pointers of a thread of ``entry``.

    Only expressions that name `threadIdx` are taken to depend on the thread, loops whose bounds are
    not numbers count once, and loads within the condition of a branch are not found. If the share
    is wrong, a modelled time is wrong and nothing else.
    """
    definition = find_definition(source, entry)
    pointers = frozenset(_POINTER.findall(definition.parameters))
    loads = list(_loads(_TOKEN.findall(definition.body), pointers))
    total = sum(load.count for load in loads)
    return sum(load.count for load in loads if load.branched) / total if total else 0.0


@dataclass(frozen=True)
class _Enclosing:
    """A loop or a condition around a statement.

    Attributes:
        condition: whether it is a condition.
        trips: the number of iterations of a loop, or 1 if its head does not give it in numbers.
        variable: the variable of a loop that is not unrolled because it contains a barrier.
    """

    condition: bool
    trips: int = 1
    variable: str = ""


@dataclass(frozen=True)
class _TextLoad:
    """One load in the text.

    Attributes:
        index: the tokens of its index.
        scopes: the scopes around it.
        conditional: whether it depends on a condition.
    """

    index: Sequence[str]
    scopes: Sequence[_Enclosing]
    conditional: bool

    @property
    def count(self) -> int:
        """The number of times that a thread executes it."""
        count = 1
        for scope in self.scopes:
            count *= scope.trips
        return count

    @property
    def branched(self) -> bool:
        """Whether the compiler leaves it in a branch of its own."""
        variables = {scope.variable for scope in self.scopes if scope.variable}
        return self.conditional and any(
            # A dividend that depends neither on thread nor iteration is divided beforehand.
            "threadIdx" in dividend and (not variables or variables & set(dividend))
            for dividend in _dividends(self.index)
        )


def _loads(tokens: Sequence[str], pointers: frozenset[str]) -> Iterator[_TextLoad]:
    blocks: list[list[_Enclosing]] = []  # scopes of the braces around the statement
    heads: list[_Enclosing] = []  # scopes of the statement itself
    at = begin = 0
    while at < len(tokens):
        word = tokens[at]
        at += 1
        if word == "for" or word == "if":
            after = _closing_bracket(tokens, at) + 1
            heads.append(_loop(tokens, at, after) if word == "for" else _Enclosing(condition=True))
            at = begin = after
        elif word == "else":
            heads.append(_Enclosing(condition=True))
            begin = at
        elif word in ("{", "}", ";"):
            if word == "{":
                blocks.append(heads)
            elif word == "}" and blocks:
                blocks.pop()
            heads, begin = [], at
        elif word in pointers and (found := _access(tokens, at)):
            index, at, stored = found
            if not stored:
                scopes = [scope for block in (*blocks, heads) for scope in block]
                chosen = any(scope.condition for scope in scopes) or "?" in tokens[begin:at]
                yield _TextLoad(index, scopes, chosen)


def _loop(tokens: Sequence[str], head: int, body: int) -> _Enclosing:
    """Return the scope of the loop whose head is in the parentheses that open at ``head``."""
    first, _, rest = " ".join(tokens[head + 1 : body - 1]).partition(";")
    start = re.search(r"(\w+) = (\d+) $", first)
    stop = re.search(r"< (\d+) $", rest.partition(";")[0])
    trips = int(stop[1]) - int(start[2]) if start and stop else 1
    kept = start is not None and _BARRIER in tokens[body : _closing_bracket(tokens, body)]
    return _Enclosing(False, max(1, trips), start[1] if start and kept else "")


def _access(tokens: Sequence[str], at: int) -> tuple[Sequence[str], int, bool] | None:
    """Return the index and the end of an access, and whether it stores.

    The access is the one whose pointer's name ends at ``at``, such as `p[i]` or `*(T*)(p + i)`;
    without one, the result is None.
    """
    if tokens[at : at + 1] == ["["]:
        end = _closing_bracket(tokens, at)
    elif tokens[at - 2 : at - 1] == ["("]:
        end = _closing_bracket(tokens, at - 2)
    else:
        return None
    after = end + 1
    while tokens[after : after + 1] == [")"]:
        after += 1
    return tokens[at:end], end + 1, tokens[after : after + 1] == ["="]


def _dividends(index: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the dividends of all divisions except by a power of two, which are mere shifts."""
    for at, word in enumerate(index[:-1]):
        if word not in ("/", "%") or at == 0:
            continue
        divisor = index[at + 1]
        if divisor.isdigit() and int(divisor).bit_count() == 1:
            continue
        begin = _operand_start(index, at - 1)
        while begin > 1 and index[begin - 1] in (".", "*", "/", "%"):
            begin = _operand_start(index, begin - 2)
        yield index[begin:at]


def _closing_bracket(tokens: Sequence[str], at: int) -> int:
    """Return where the bracket that opens at ``at`` is closed, or the end of the text."""
    if at >= len(tokens) or tokens[at] not in _CLOSING:
        return at
    opened, closed, depth = tokens[at], _CLOSING[tokens[at]], 0
    for place in range(at, len(tokens)):
        depth += (tokens[place] == opened) - (tokens[place] == closed)
        if not depth:
            return place
    return len(tokens)


def _operand_start(tokens: Sequence[str], at: int) -> int:
    """Return where the operand that ends at ``at`` begins."""
    depth = 0
    for place in range(at, -1, -1):
        depth += (tokens[place] == ")") - (tokens[place] == "(")
        if depth <= 0:
            return place
    return 0


def private_words(source: str, entry: str) -> int:
    """Return the 4-byte words that the private arrays of the function ``entry`` take at once.

    Arrays in successive blocks share their registers. An array that a vector load fills or a vector
    store empties does not count: it is the register of a load in flight.

    Only declarations with literal extents, one on a line, are recognized. If the result is wrong, a
    modelled time is wrong and nothing else.
    """
    body = find_definition(source, entry).body
    # For each open block: the most of the blocks in it so far, and its own arrays.
    most, within = [0.0], [0.0]
    for match in _BRACE_OR_ARRAY.finditer(body):
        if match["brace"] == "{":
            most.append(0.0)
            within.append(0.0)
        elif match["brace"] is None:
            words = _WORDS.get(match["type"], 0.0)
            for extent in re.findall(r"\d+", match["extents"]):
                words *= int(extent)
            moved = rf"reinterpret_cast\s*<[^<>]*\*\s*>\s*\(\s*{match['name']}\s*\)"
            if words > _VECTOR_WORDS or not re.search(moved, body):
                within[-1] += words
        elif len(most) > 1:
            inner = most.pop() + within.pop()
            most[-1] = max(most[-1], inner)
    while len(most) > 1:  # braces that are not closed
        inner = most.pop() + within.pop()
        most[-1] = max(most[-1], inner)
    return round(most[0] + within[0])
