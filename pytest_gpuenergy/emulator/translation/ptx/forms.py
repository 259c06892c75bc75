"""PTX instructions that are one call of the host: a table of their forms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from pytest_gpuenergy.emulator.translation.ptx.instructions import Instruction
from pytest_gpuenergy.emulator.translation.ptx.ptx_operands import HOST, Names

# A row has the opcode, the operands and the C++, with two spaces in between; an indented line goes
# on with the row above. Of an opcode, brackets enclose what may be missing, and `(name=...|...)` is
# a choice with a name; words in capitals stand for _PARTS. A letter says what an operand is:
#   t  a register that is set    _  the destination _    j  a label    p  a predicate
#   v  a value    u  a value as an unsigned integer    k  a value of the choice `type`
#   c  a constant    *  all further operands, which change no result
#   s  an address in shared memory    g  one in global memory    b  a barrier in shared memory
#   m  an address in shared memory if the opcode has the choice `shared`
# In the C++, `@` is the prefix of the host's names, `$0` an operand and `$name` a choice.
_TABLE = r"""
mov.(type=pred)  tp  $0 = $1;
cvta[.to].(global|shared[::cta]).u(32|64)  tv  $0 = $1;
selp.(type=(b|u|s|f)(16|32|64))  tkkp  $0 = $3 ? $1 : $2;
slct.(type=(b|u|s|f)(32|64)).s32  tkkv  $0 = (int)$3 >= 0 ? $1 : $2;
testp.(name=finite|infinite|number|notanumber|normal|subnormal).(type=f32|f64)  tk
    $0 = @testp_$name<@$type>($1);
isspacep.(space=global|shared|local)  tv  $0 = @is_in_$space((const void*)$1);
cvt.pack.sat.(to=(s|u)(8|16)).s32[.b32]  tvv  $0 = @packed<@$to>($1, $2, 0);
cvt.pack.sat.(to=(s|u)8).s32.b32  tvvv  $0 = @packed<@$to>($1, $2, $3);
cvt.rn.satfinite.(to=e4m3|e5m2)x2.(type=f32)  tkk  $0 = @to_fp8_pair<@$to>($1, $2);
cvt.rn.satfinite.(to=e4m3|e5m2)x2.f16x2  tv  $0 = @to_fp8_pair<@$to>($1);
cvt.rn.f16x2.(given=e4m3|e5m2)x2  tv  $0 = @from_fp8_pair<@$given>($1);
bra[.uni]  j  @turn(); goto $0;
trap  -  @trap("trap");
setmaxnreg.(inc|dec).sync.aligned.u32  c  (void)0;
nanosleep.u32  v  @nap();
griddepcontrol.(wait|launch_dependents)  -  (void)0;

membar.cta  -  @thread_fence(false);
membar.(gl|sys)  -  @thread_fence(true);
FENCE.cta  -  @thread_fence(false);
FENCE.(cluster|gpu|sys)  -  @thread_fence(true);
fence.proxy.async[.(global|shared::(cta|cluster))]  -  @proxy_fence();
fence.mbarrier_init.release.cluster  -  @init_fence();
bar[rier][.cta].sync[.aligned]  v  @bar_sync(__LINE__, $0);
bar[rier][.cta].sync[.aligned]  vv  @bar_sync(__LINE__, $0, $1);
bar[rier][.cta].arrive[.aligned]  uu  @named_barrier($0, $1, false);
bar.warp.sync  v  @warp_barrier($0);
barrier.cluster.arrive[.release][.aligned]  -  @cluster_arrive(true);
barrier.cluster.arrive.relaxed[.aligned]  -  @cluster_arrive(false);
barrier.cluster.wait[.acquire][.aligned]  -  @cluster_wait();
mapa.shared::cluster.u32  tuu  $0 = @map_shared($1, $2);
mapa.u64  tvu  $0 = (unsigned long long)@map_shared_rank((const void*)$1, $2);
getctarank.u64  tv  $0 = @shared_rank((const void*)(unsigned long long)$1);
getctarank.shared::cluster.u32  tv
    $0 = @shared_rank(@cluster_place((const void*)(unsigned long long)$1));

mbarrier.arriveRELEASE(shared=.shared::cluster).b64  _m  @mbarrier_arrive_in_cluster($1, 1);
mbarrier.arriveRELEASE(shared=.shared::cluster).b64  _mv  @mbarrier_arrive_in_cluster($1, $2);
mbarrier.initSPACE  mv  @mbarrier_init($0, $1);
mbarrier.invalSPACE  m  @mbarrier_inval($0);
mbarrier.expect_txRELAXEDSPACE  mv  @mbarrier_expect($0, $1);
mbarrier.complete_txRELAXEDSPACE  mv  @mbarrier_complete($0, $1);
mbarrier.arriveRELEASESPACE  tm  $0 = @mbarrier_arrive<false>($1, 1);
mbarrier.arriveRELEASESPACE  tmv  $0 = @mbarrier_arrive<false>($1, $2);
mbarrier.arrive_dropRELEASESPACE  tm  $0 = @mbarrier_arrive<true>($1, 1);
mbarrier.arrive_dropRELEASESPACE  tmv  $0 = @mbarrier_arrive<true>($1, $2);
mbarrier.arrive.expect_txRELEASESPACE  tmv  $0 = @mbarrier_arrive_expect<false>($1, $2);
mbarrier.arrive_drop.expect_txRELEASESPACE  tmv  $0 = @mbarrier_arrive_expect<true>($1, $2);
mbarrier.(test|try)_waitACQUIRESPACE  tmv  $0 = @mbarrier_wait($1, $2);
mbarrier.try_waitACQUIRESPACE  tmvv  $0 = @mbarrier_wait($1, $2);
mbarrier.(test|try)_wait.parityACQUIRESPACE  tmv  $0 = @mbarrier_wait_parity($1, $2);
mbarrier.try_wait.parityACQUIRESPACE  tmvv  $0 = @mbarrier_wait_parity($1, $2);

shfl.sync.(mode=u|d|b|i)(p|own|fly|dx).b32  tvvvv  $0 = @shfl<'$mode'>($1, $2, $3, $4).value;
shfl.sync.(mode=u|d|b|i)(p|own|fly|dx).b32  ttvvvv
    { const auto cuhost_d = @shfl<'$mode'>($2, $3, $4, $5); $0 = cuhost_d.value;
    $1 = cuhost_d.inside; }
vote.sync.(mode=all|any|uni|ballot).(pred|b32)  tpv  $0 = @vote_$mode($1, $2);
redux.sync.(name=add|min|max|and|or|xor).(type=(u|s|b)32)  tvv  $0 = @redux_$name<@$type>($1, $2);
elect.sync  ttv
    { const unsigned cuhost_d = @elect($2); $0 = cuhost_d; $1 = cuhost_d == @laneid(); }
activemask.b32  t  $0 = @active_lanes(__LINE__);

cp.async.mbarrier.arrive[(shared=.shared[::cta])].b64  m
    @phase_arrive_with_copies(@word($0), false);
cp.async.mbarrier.arrive.noinc[(shared=.shared[::cta])].b64  m
    @phase_arrive_with_copies(@word($0), true);
cp.async.commit_group  -  @commit_copies();
cp.async.wait_all  -  @commit_copies(); @finish_copies(0);
cp.async.wait_group  c  @finish_copies((size_t)$0);
LOAD  sgub  @bulk_load($0, $1, $2, $3, 0);
LOAD.multicast::cluster  sgubu  @bulk_load($0, $1, $2, $3, $4);
cp.async.bulk.global.shared::cta.bulk_group  gsu  @bulk_store($0, $1, $2);
cp.async.bulk.commit_group  -  @bulk_commit();
cp.async.bulk.wait_group[.read]  c  @bulk_wait($0);
createpolicy.(fractional|range|cvt)\S*b64  t*  $0 = 0;
prefetch(u|[.(global|local)]).(L1|L2)[::evict_\w+]  *  (void)0;
prefetch[.(param|const)].tensormap  *  (void)0;
cp.async.bulk.prefetch[.tensor.\dd].L2.global[.(tile|im2col)]  *  (void)0;
discard.global.L2  *  (void)0;
applypriority.global.L2::evict_normal  *  (void)0;

wgmma.fence.sync.aligned  -  @wgmma_fence(__LINE__);
wgmma.commit_group.sync.aligned  -  @wgmma_commit(__LINE__);
wgmma.wait_group.sync.aligned  c  @wgmma_wait(__LINE__, (unsigned)$0); $read_again
"""
_PARTS = {
    "FENCE": "fence[.(sc|acq_rel|acquire|release)]",
    "RELEASE": "[.release.(cta|cluster)]",
    "ACQUIRE": "[.acquire.(cta|cluster)]",
    "RELAXED": "[.relaxed.(cta|cluster)]",
    "SPACE": "[(shared=.shared[::(cta|cluster)])].b64",
    "LOAD": "cp.async.bulk.shared::(cluster|cta).global.mbarrier::complete_tx::bytes",
}


class _PtxForm(NamedTuple):
    opcode: re.Pattern[str]
    operands: str
    code: str


def _forms() -> Iterator[_PtxForm]:
    for row in re.sub(r"\n    ", "  ", _TABLE).splitlines():
        if not row:
            continue
        opcode, operands, code = re.split(r"  +", row, maxsplit=2)
        for word, part in _PARTS.items():
            opcode = opcode.replace(word, part)
        opcode = re.sub(r"\((\w+)=", r"(?P<\1>", opcode.replace(".", r"\."))
        opcode = opcode.replace("[", "(?:").replace("]", ")?")
        yield _PtxForm(re.compile(opcode), operands.strip("-"), re.sub("  +", " ", code))


_FORMS = tuple(_forms())


def form_code(instruction: Instruction, names: Names) -> str:
    """Return C++ for an instruction in the table; it is empty for any other instruction."""
    for form in _FORMS:
        found = form.opcode.fullmatch(instruction.opcode)
        if found and (values := _values(form.operands, found, instruction.operands, names)):
            values |= {"read_again": names.read_again(), **found.groupdict()}
            parts = re.split(r"\$(\w+)", form.code)  # every other one is a name
            parts[1::2] = [values[name] for name in parts[1::2]]
            return "".join(parts).replace("@", HOST)
    return ""


def _values(
    letters: str, opcode: re.Match[str], operands: tuple[str, ...], names: Names
) -> dict[str, str]:
    """Return the C++ for each operand by its number; nothing if they do not fit the letters."""
    given = operands
    if letters.endswith("*"):
        letters = letters[:-1]
        given = operands[: len(letters)]
    misfits = any(
        (letter == "c" and not names.constant(text)) or (letter == "_" and text != "_")
        for letter, text in zip(letters, given, strict=False)
    )
    if len(given) != len(letters) or misfits:
        return {}
    groups = opcode.groupdict()
    write: Mapping[str, Callable[[str], str]] = {
        "t": names.target,
        "_": str,
        "j": names.jump,
        "v": names.value,
        "c": names.value,
        "u": lambda text: f"(unsigned){names.value(text)}",
        "k": lambda text: names.value(text, groups["type"]),
        "p": names.predicate,
        "s": lambda text: names.address(text, shared=True),
        "g": lambda text: names.address(text, shared=False),
        "m": lambda text: names.address(text, shared=bool(groups["shared"])),
        "b": lambda text: f"{HOST}word({names.address(text, shared=True)})",
    }
    pairs = enumerate(zip(letters, given, strict=True))
    return {"": "", **{str(k): write[letter](text) for k, (letter, text) in pairs}}
