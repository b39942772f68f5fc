"""The registry of diagnostics: each code once, with the page that `tcexport explain` prints.

Codes are stable: one that was published keeps its meaning and is never used again for another.
TC0 what was typed · TC1 the model cannot be traced · TC2 names, ranges and promises · TC3 a call
outside the contract · TC4 a file that cannot be loaded here · TC5 lowering, compilers, verification.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One kind of failure: `what` it is, `why` it matters, what to do (`fix`), and an example of
    the message.

    ``level`` is the mildest in which an export finds it: ``refuse``, ``warn`` or ``note``. Where it
    is not ``refuse``, ``--error`` raises it; ``allowed`` says that ``--allow`` may silence it,
    because the bundle gives eager's numbers nonetheless, or refuses the call.
    """

    code: str
    title: str
    what: str
    why: str
    fix: str
    example: str = ""
    level: str = "refuse"
    allowed: bool = False


RULES: dict[str, Rule] = {}


def _rule(
    code: str,
    title: str,
    what: str,
    why: str,
    fix: str,
    example: str = "",
    *,
    level: str = "refuse",
    allowed: bool = False,
) -> None:
    if code in RULES:
        raise ValueError(f"code {code} is registered twice")
    RULES[code] = Rule(code, title, what, why, fix, example, level, allowed)


_rule(
    "TC001",
    "source not found",
    "The file named as the source does not exist, or is of a kind that is not read.",
    "Nothing can be exported from it.",
    "Give a .py file, `file.py:ClassName`, a saved .pt2 program or an .onnx file.",
)
_rule(
    "TC002",
    "no model in the source",
    "The source has no module-level `model` and not exactly one nn.Module class that can be made "
    "without arguments.",
    "The exporter does not guess which object is meant, nor with which arguments to make it.",
    "Write `model = MyNet()` at module level, or name the class: `tcexport file.py:MyNet`.",
)
_rule(
    "TC003",
    "the source failed",
    "Running the source file raised an exception, which is shown with its own traceback.",
    "The model is whatever the file defines; a file that does not run defines none.",
    "Run the file with python and mend it there.",
)
_rule(
    "TC004",
    "no example inputs",
    "The trace needs example inputs, and neither the source nor the command line gives any.",
    "Shapes, dtypes and structure of the arguments are taken from an example.",
    "Write `example_inputs = (…,)` at module level, or give "
    "`--input 'ids=int64[batch=4,seq=128]'` for each tensor argument.",
)
_rule(
    "TC005",
    "example inputs do not fit",
    "The example inputs cannot be bound to the parameters of `forward`, or hold something other "
    "than tensors, None, bool, int, float and str in tuples, lists, dicts and named tuples; or "
    "`forward` returns something other than these.",
    "What cannot be written down in the contract cannot be checked at a call.",
    "Pass, and return, tensors and plain values.",
)
_rule(
    "TC006",
    "unknown name",
    "An axis, a dim or an input was named that is not there.",
    "A misspelt `--dynamic` would leave an axis fixed without a word.",
    "Use one of the names listed.",
)
_rule(
    "TC007",
    "axis names do not fit",
    "`axes` gives an input more or fewer names than it has axes, or two sizes for one name.",
    "Every axis is either named or None; equal names mean equal sizes.",
    "Give one name, expression or None for each axis.",
)
_rule(
    "TC008",
    "malformed option",
    "An option's value could not be read.",
    "Half an option is worse than none.",
    "See `tcexport export --help` for the forms.",
)
_rule(
    "TC009",
    "the model failed on the example",
    "Running the model itself, before any tracing, on the example inputs raised an exception.",
    "What fails in eager mode cannot be exported.",
    "Mend the model or the example inputs.",
)
_rule(
    "TC010",
    "model in training mode",
    "The model, or a part of it, is in training mode.",
    "Dropout and batch norm behave otherwise in training; a bundle is for inference.",
    "Call `model.eval()`; the command line does it for you unless `--train` is given.",
)
_rule(
    "TC011",
    "missing extra",
    "A package that this command needs is not installed.",
    "The runtime alone is small; exporting needs torch and TVM.",
    "`pip install 'tcexport[export]'`; the message names the extra.",
)
_rule(
    "TC012",
    "cannot write the output",
    "The bundle could not be written where it was asked for.",
    "A file appears whole or not at all; what stood there before is untouched.",
    "Choose a folder that exists, is writable and has room.",
)
_rule(
    "TC013",
    "level can't be changed",
    "`--error` or `--allow` (or `[tool.tcexport]` in pyproject.toml) names a code that it cannot "
    "raise or silence.",
    "A refusal stands for a wrong answer, or for no answer at all; a warning is all that says that "
    "the bundle may answer otherwise than the model would. Neither goes away by not being told.",
    "Mend the line that the code is about. `--allow` takes the notes on what is guarded, or makes no "
    "difference to the numbers; the page of each code says whether it can be silenced.",
)
_rule(
    "TC014",
    "key cannot be read",
    "A file or text that should hold keys for signatures does not, or holds keys of another kind.",
    "A key that is passed over would leave out what you meant to trust, or to revoke.",
    "Give an Ed25519 key as PEM (`tcexport keygen`, or `openssl genpkey -algorithm ed25519`): the "
    "private one to sign, the public one to verify.",
)
_rule(
    "TC015",
    "weights do not fit",
    "The file of weights is no safetensors file, or lacks a parameter of the model, holds one more, "
    "or one of another shape or dtype.",
    "A tensor that is left out, cut or cast in silence is another model.",
    "Save the `state_dict()` of the very architecture that was exported. Nothing is cast for you.",
)
_rule(
    "TC016",
    "weights are part of the code",
    "A value that is to be exchanged went into the compiled code or into the contract, or the bundle "
    "does not record how its weights were made.",
    "The code was made for that value: with another one it would answer wrongly.",
    "Export the model again with the new weights.",
)
_rule(
    "TC101",
    "graph break",
    "The model does something that cannot be part of one graph: Dynamo, with fullgraph semantics, "
    "stopped at this line.",
    "What the graph does not hold would be lost, or frozen at the value of the trace.",
    "Follow the hint; move the code out of `forward`, or write it with tensor operations.",
)
_rule(
    "TC102",
    "branch on data",
    "The model takes a branch that depends on the values of a tensor.",
    "A trace can hold only one side of it.",
    "Use torch.where, or torch.cond for whole blocks.",
)
_rule(
    "TC103",
    "state is mutated",
    "A call changes a parameter or a Python attribute of the model, or assigns a buffer anew.",
    "The change would be lost: the second call would give the first call's answer.",
    "Write to a buffer in place, which makes it state (TC122), or take the state as an argument and "
    "return the new one.",
)
_rule(
    "TC104",
    "input is mutated",
    "The model writes into one of its inputs.",
    "The write would be lost.",
    "Work on a copy and return it.",
)
_rule(
    "TC105",
    "not deterministic",
    "Two eager calls with the same inputs gave different answers, or the model draws random numbers "
    "that are not torch's, or of a kind that a bundle does not draw.",
    "A trace would freeze one sample.",
    "Draw with torch's own functions and its global generator (docs/random.md), or outside, and pass "
    "what was drawn as an input.",
)
_rule(
    "TC106",
    "value baked in",
    "The trace read something outside of the model and its inputs and kept the value it found.",
    "The bundle answers as the exporting machine would have.",
    "Make it an input, or a constant of the model.",
    level="warn",
)
_rule(
    "TC107",
    "number read from a tensor",
    "`.item()`, `.tolist()`, `int(tensor)` or an index made of a tensor gives Python numbers that "
    "the graph cannot hold.",
    "The numbers of the example would be the numbers of every call.",
    "Keep it a tensor: `x > x.mean()`; `torch.where`, `torch.index_select` and `torch.gather` take "
    "tensors. A size that is read with `.item()` can be kept with `torch._check(n >= 0)` after it.",
)
_rule(
    "TC108",
    "numpy call",
    "A function of numpy is called that has no counterpart which a trace can take in its place.",
    "numpy computes now, outside of the graph; a bundle has no numpy in it.",
    "Use the function of the same name in torch: `torch.fft.fft` for `np.fft.fft`.",
)
_rule(
    "TC109",
    "C function",
    "A builtin or a function of a C extension is called that a trace cannot look into.",
    "Its result would be frozen, or its effect lost.",
    "Call it in `__init__` if its arguments are known there, and keep the result; or write it with "
    "torch.",
)
_rule(
    "TC110",
    "output during a call",
    "`forward` prints, logs or warns.",
    "It happens at export; a bundle is silent.",
    "Nothing, if that is fine. Otherwise return the value and print it outside.",
    "note[TC110] print() happens at export only, not when the bundle is called",
    level="note",
    allowed=True,
)
_rule(
    "TC111",
    "file, network or process",
    "`forward` opens a file, a connection or a process, itself or through a library.",
    "A bundle holds tensors and code for them; what it would read may be gone, what it would write "
    "would not be written.",
    "Read files in `__init__`. Write and send outside, from the results.",
)
_rule(
    "TC112",
    "saving during a call",
    "`forward` calls torch.save, torch.load or pickle.",
    "Nothing of it can be in the graph.",
    "Return the tensor, and save it outside.",
)
_rule(
    "TC113",
    "write around the trace",
    "`forward` writes to a tensor through `.data`, which autograd and the trace do not see.",
    "torch.export takes it without a word and drops the write: a wrong answer.",
    "Compute a new tensor: `y = y + 1`, not `y.data.add_(1)`.",
)
_rule(
    "TC114",
    "clock read",
    "`forward` reads the time.",
    "The time of the export would be the time of every call.",
    "Take the time as an input.",
)
_rule(
    "TC115",
    "mode baked in",
    "`forward` asks for training mode, grad mode, autocast or `requires_grad`.",
    "The arm taken at export is the only one in the bundle: eval mode, no grad.",
    "Nothing, if that is the arm meant.",
    "note[TC115] training (False) was asked at export: the answer is kept",
    level="note",
    allowed=True,
)
_rule(
    "TC116",
    "layout baked in",
    "`forward` asks whether a tensor is contiguous, or for its strides.",
    "The arm for contiguous tensors is the only one in the bundle, so that calls with others are "
    "refused (TC312).",
    "Nothing, if both arms give the same numbers.",
    level="note",
    allowed=True,
)
_rule(
    "TC117",
    "trace differs from the model",
    "The traced program, run op by op, does not give the numbers of the model itself.",
    "torch.export took something that it cannot represent.",
    "Look for what forward does beside computing with tensors: state, caches, `.data`, views of "
    "numpy arrays.",
)
_rule(
    "TC118",
    "context manager",
    "`forward` enters a context manager that a trace cannot look into.",
    "What it does on entry and exit would be lost.",
    "Enter it outside of `forward`, or write what it does into the model.",
)
_rule(
    "TC119",
    "generator",
    "`forward` uses a generator in a way that a trace cannot follow.",
    "Its position is state that the graph does not hold.",
    "Use a list.",
)
_rule(
    "TC120",
    "custom op or autograd function",
    "`forward` calls an op of its own, or a torch.autograd.Function, that a trace cannot take.",
    "The graph would hold a name that nothing can compute.",
    "Give a lowering for it (docs/custom-ops.md), or write it with torch's own ops.",
)
_rule(
    "TC121",
    "global kept",
    "`forward` reads a global of the user's module; its value at export is a constant of the bundle.",
    "Setting the global later, or in another process, does not change the bundle.",
    "Nothing, if it is a constant. Otherwise make it an argument of `__init__`, or an input.",
    level="note",
    allowed=True,
)
_rule(
    "TC122",
    "state",
    "`forward` writes to a buffer: a counter, a cache of keys and values, running statistics.",
    "The buffer is state of the bundle: each session has its own, and a call without one is refused "
    "(TC321). See docs/state.md.",
    "Nothing, if that is meant. Otherwise write to a copy.",
    "note[TC122] the model writes to cache.k, which is kept from call to call, for each session",
    level="note",
    allowed=True,
)
_rule(
    "TC123",
    "random numbers",
    "`forward` draws random numbers with torch: `torch.rand`, `multinomial`, dropout that is on.",
    "A bundle draws its own, from a generator that is state: each session is given a seed, and a call "
    "without one is refused (TC325). The numbers are not those that torch gives for that seed. See "
    "docs/random.md.",
    "Nothing, if that is meant. Otherwise take the random tensor as an input.",
    "note[TC123] torch draws random numbers: a bundle draws its own, from the seed of a session",
    level="note",
    allowed=True,
)
_rule(
    "TC124",
    "cache",
    "A call changes an attribute, or an item of a dict, and at several sizes no answer hangs on it, "
    "bit by bit: tables of rotary positions that are kept until the length changes, a weight that is "
    "computed anew by every call.",
    "A bundle computes such values at every call; what Python keeps of them is left out.",
    "Nothing, if that is meant. Otherwise hold state in a buffer that is written in place (TC122).",
    "note[TC124] a call changes self.cos, a cache: no answer hangs on it, and a bundle keeps none",
    level="note",
    allowed=True,
)
_rule(
    "TC130",
    "ONNX operator is not read",
    "An ONNX file has an operator, an attribute, an opset or a type that has no exact meaning in torch "
    "here, or computes from data what must be known (a shape, axes, the condition of an `If`).",
    "What is read is an allow-list; another operator's numbers would be a guess.",
    "Do what the message says, or export the PyTorch model that the file was made from. All operators "
    "that are read are listed in docs/onnx.md. The line is the node's: line 1 stands for the inputs, "
    "line 2 for the first node.",
    "error[TC130] NonMaxSuppression is not read",
)
_rule(
    "TC131",
    "broken ONNX file",
    "An .onnx file is damaged, its graph has a cycle or names that nothing gives, or its external data "
    "is missing, too short, or not below the file's own folder.",
    "A file that says one thing twice, or reads from elsewhere, cannot be trusted.",
    "Save the model again; keep its external data beside it, under the names that it was saved with.",
    "error[TC131] net.onnx cannot be read: the initializer w is in '../w.bin', which is not below the "
    "model's folder",
)
_rule(
    "TC132",
    "ONNX axes without a name",
    "An input of an .onnx file has an axis with neither a size nor a name that can be a dim's.",
    "Axes without a name might be equal or not; equal names mean equal sizes.",
    "Name them with `--axes`; `_` is an axis that is fixed at the size given by `--input`.",
    "error[TC132] net.onnx has axes without a name",
)
_rule(
    "TC133",
    "ONNX Runtime gives something else",
    "ONNX Runtime was asked for the outputs of an .onnx file at the sizes that are named, and gave "
    "others than those which the file is read to have; or, of a copy that `--emit-onnx` made, others "
    "than the model's, or none.",
    "One of both is wrong; which one is not guessed.",
    "Report it with the file, or export the PyTorch model that the file was made from. Of a copy: "
    "leave `--emit-onnx` out.",
)
_rule(
    "TC134",
    "ONNX name changed",
    "An input of an .onnx file has a name that no parameter of a Python function can have.",
    "Calls name inputs by the name in the note.",
    "Nothing.",
    level="note",
    allowed=True,
)
_rule(
    "TC135",
    "no ONNX copy of the model",
    "`--emit-onnx` asks torch.onnx for an ONNX file of the model with its dims dynamic. It has no "
    "translation of an op, or fixes one of the dims; or the model has what such a file cannot hold: "
    "state, random numbers, complex inputs or outputs, a constant as an output, several arms "
    "(`--cover`).",
    "A copy that does less than the bundle would be taken for the same model.",
    "Leave `--emit-onnx` out, or mend what the note names.",
    "error[TC135] the model has no ONNX copy\n  it keeps state from call to call: seen",
)
_rule(
    "TC190",
    "tracing failed",
    "torch.export failed in a way that has no page of its own.",
    "Nothing was exported.",
    "Read the message of torch below it; if the model is at fault, it says where.",
)
_rule(
    "TC201",
    "dim is fixed by the trace",
    "A dim that was asked to be dynamic was fixed at the example's size.",
    "The bundle would serve this one size only.",
    "See the line named; do not compare the size with constants, or leave the dim out of "
    "`--dynamic`.",
)
_rule(
    "TC202",
    "dims must be equal",
    "Two dims that were given different names must be equal for the trace to hold.",
    "A bundle with independent ranges would refuse most pairs of sizes.",
    "Give both axes the same name.",
)
_rule(
    "TC210",
    "range can't be served",
    "A range given with `--dynamic` is a promise of the bundle, and the trace cannot keep it.",
    "A deployment that believes the range would be refused at night.",
    "Take the range shown (it was tried), change the line named, or pass `--narrow`.",
    "error[TC210] seq=1..4096 can't be served: the trace needs seq <= 512",
    level="note",
    allowed=True,
)
_rule(
    "TC211",
    "guard has no form",
    "The trace assumes something that can neither be written as an expression over the dims nor be "
    "looked at by the compiled code.",
    "An assumption that is dropped is a wrong answer later.",
    "See the line named; the notes say which expression it was. What the model asserts of a number can "
    "be asserted of a tensor, too: assert (x > 0).all().",
)
_rule(
    "TC212",
    "example outside its range",
    "The example inputs lie outside the range or the step that was asked for.",
    "The trace follows the example; it must be one of the calls served.",
    "Change the example or the range.",
)
_rule(
    "TC220",
    "a variant for sizes that are not served",
    "`--specialize` or `--profile` asks for code for sizes that lie outside of what the bundle "
    "serves, or between the steps of a range.",
    "No call with these sizes would be taken: the code could never run.",
    "Ask for sizes within the ranges, or for a wider `--dynamic`.",
)
_rule(
    "TC221",
    "more variants than the limit",
    "The sizes of `--specialize`, multiplied out, the profiles and the parts that `--cover` traces "
    "are together more than `--variant-limit`, which is 8 by default.",
    "Each variant costs code, time at export and a look at every call. Where a product of sizes "
    "grows by mistake, nobody would notice.",
    "Name fewer sizes (`tcexport advise` says which pay), or raise the limit.",
)
_rule(
    "TC222",
    "a variant was left out",
    "A variant that was asked for would have the code that the bundle has already.",
    "Kernels take sizes as they come; what makes them better is a size that is a number. A range "
    "alone fixes none.",
    "Fix one of the dims.",
    level="note",
    allowed=True,
)
_rule(
    "TC223",
    "variants that overlap",
    "Two variants take some of the same calls, and neither is a part of the other.",
    "Both give eager's numbers. Which of them serves such a call is decided by their order, the one "
    "with fewer sizes first, which you may not have meant.",
    "Make them disjoint, or leave it.",
    level="note",
    allowed=True,
)
_rule(
    "TC224",
    "sizes that no arm covers",
    "`--cover` traced the model at the sizes that a trace left out, and some sizes are still left: the "
    "model fails there, or a trace at them holds for other sizes, or its arms do not give answers of "
    "one form.",
    "The range that is given is a promise of the bundle.",
    "Cover fewer sizes, mend the model at the line named, or take what is covered with `--narrow`: "
    "calls of other sizes are then refused.",
    level="note",
    allowed=True,
)
_rule(
    "TC225",
    "dims that were found by comparing examples",
    "`--dynamic auto` compared the example inputs: the dims that they differ in are dynamic, the rest "
    "is fixed at the size of the examples. Axes without a name got one.",
    "The examples may be alike by chance, or differ together by chance: axes that have the same sizes "
    "in all examples are taken for one dim.",
    "Look at what is listed; write names in `axes` and `--dynamic` as shown to pin it.",
    level="note",
    allowed=True,
)
_rule(
    "TC226",
    "a variant that is slower than the general code",
    "A variant was measured beside the code that would serve its calls else, in turn, twice, and was "
    "slower by more than noise.",
    "A variant is there to be faster. The bundle is built again without it, and has the bytes of one "
    "that is exported without it.",
    "Nothing is to be done. `--keep-variants` keeps all of them and measures none.",
    level="note",
    allowed=True,
)
_rule(
    "TC301",
    "size out of range",
    "An axis is smaller or larger than the bundle serves, or not on its steps.",
    "The compiled code is only right inside the range.",
    "Pad, split or shorten the input; or export again with a wider `--dynamic`.",
    "GuardError[TC301] input_ids axis 1 (seq): got 600, needs seq <= 512",
)
_rule(
    "TC302",
    "arguments do not match",
    "An argument is missing, unexpected or given twice, or its structure (tuple, list, dict and "
    "their keys) is not the exported one.",
    "Values would land in the wrong place.",
    "Call with the arguments that `tcexport inspect` lists.",
)
_rule(
    "TC303",
    "not a tensor",
    "Something that is not a numpy array or a DLPack tensor came where a tensor is needed.",
    "Nothing is converted by guessing.",
    "Pass a numpy array or any tensor with `__dlpack__`.",
)
_rule(
    "TC304",
    "wrong dtype",
    "A tensor has another dtype than the exported one.",
    "Casting would change the numbers.",
    "Convert the input.",
)
_rule(
    "TC305",
    "wrong rank",
    "A tensor has more or fewer axes than the exported one.",
    "Broadcasting by guessing would change the meaning.",
    "Reshape the input.",
)
_rule(
    "TC306",
    "wrong size",
    "An axis that is fixed, derived from a dim, or equal to another axis has another size.",
    "The compiled code reads exactly this many elements.",
    "Give the size needed.",
)
_rule(
    "TC307",
    "guard violated",
    "A condition on the sizes, which the trace took for granted, does not hold.",
    "The traced graph is another one on the other side of it.",
    "See the line named; give sizes for which it holds.",
)
_rule(
    "TC308",
    "fixed value differs",
    "An argument was fixed at export (None, bool, int, float or str) and another value came.",
    "The graph was traced with that value.",
    "Pass the value fixed, or export again with the value needed.",
)
_rule(
    "TC309",
    "index out of range",
    "An integer tensor holds a value that is outside the table it indexes.",
    "The kernel would read other memory.",
    "Clamp or mend the ids.",
)
_rule(
    "TC310",
    "wrong device",
    "A tensor lies on a device that this bundle, as loaded, cannot read.",
    "No copies between devices are made behind your back.",
    "Move the tensor to the CPU first.",
)
_rule(
    "TC311",
    "assertion failed",
    "An assertion of the model on the values of its tensors, or on a number that it computes of them, "
    "does not hold for this call, or a condition of an op: integers are divided by 0, a number of "
    "repeats is negative.",
    "The model itself would have raised.",
    "See the line named; give values for which it holds.",
)
_rule(
    "TC312",
    "wrong layout",
    "A tensor is not contiguous, and the model asks for the layout of tensors in `forward`.",
    "The trace kept the arm for contiguous tensors; eager might take the other one.",
    "Make the input contiguous, if that arm is the one that is meant.",
)
_rule(
    "TC320",
    "no variant takes the call",
    "The call meets what the bundle says of itself, but none of its variants is for such sizes: "
    "the range was exported with holes (`--cover` with `--narrow`).",
    "Each variant was traced along one arm of a branch on sizes, and gives eager's numbers there "
    "alone.",
    "Use sizes that one of the variants named serves, or export again so that the range is covered.",
)
_rule(
    "TC321",
    "call without a session",
    "The model keeps state from call to call, and was called itself.",
    "State that all callers shared without knowing would mix their calls.",
    "Call it through a session: `session = model.session()`, then `session(…)`.",
    "error[TC321] the model keeps state (cache.k), and was called without a session",
)
_rule(
    "TC322",
    "session in use",
    "A session was called, read or changed while another call of it was running.",
    "Two calls would write to one state.",
    "Make a session for each thread, or one call after the other.",
    "error[TC322] the session is in use by another call",
)
_rule(
    "TC323",
    "state undefined",
    "The last call of the session failed while the compiled code ran: an index that the model "
    "computes, an assertion on values. Some of the state was written by then.",
    "Going on would give numbers that eager never gives.",
    "`reset()`, or `restore(…)` with what `state()` gave before.",
    "error[TC323] the last call failed while it ran, and the state is undefined",
)
_rule(
    "TC324",
    "state does not fit",
    "What is to be restored lacks a state, names one that the model does not have, or holds a tensor "
    "of another dtype or shape.",
    "It is the state of another model, or of another version of it.",
    "Restore what `state()` of a session of this bundle gave.",
    "error[TC324] cache.k is float32 [1, 8, 256, 64], the state is float32 [1, 8, 512, 64]",
)
_rule(
    "TC325",
    "no seed",
    "The model draws random numbers, and the session was not given a seed, or was reset since.",
    "Numbers from nowhere could not be drawn again.",
    "`session.seed(1234)`, or `restore(…)` with what `state()` gave before.",
    "error[TC325] the model draws random numbers, and the session has no seed",
)
_rule(
    "TC401",
    "not a bundle",
    "The file is not a .tcpkg: not the strict ZIP of the format, or its members do not fit the "
    "manifest.",
    "A file that is not what it says is not run.",
    "Fetch or export it again.",
)
_rule(
    "TC402",
    "digest differs",
    "A member's bytes are not those that the manifest was written for.",
    "The file was damaged or changed.",
    "Fetch or export it again.",
)
_rule(
    "TC403",
    "format from the future",
    "The bundle has a newer format version than this runtime reads.",
    "Unknown fields may hold assumptions.",
    "Upgrade tcexport.",
)
_rule(
    "TC404",
    "no binary for this machine",
    "The bundle holds no binary for this operating system, machine, libc or CPU level.",
    "Code for another CPU ends in an illegal instruction in the middle of a call.",
    "Export with a `--target` that this machine has.",
)
_rule(
    "TC405",
    "runtime conflict",
    "The process has loaded another TVM runtime, or another version of apache-tvm-ffi, than the "
    "bundle was built for.",
    "Two versions in one process share their registries and crash.",
    "Load the bundle in a process of its own or install the version named.",
)
_rule(
    "TC406",
    "does not serve what is asked",
    "A range given with `serves=` is not covered by the bundle's contract.",
    "Better known at load than at the first call outside.",
    "Ask for less, or export with a wider `--dynamic`.",
)
_rule(
    "TC407",
    "device not available",
    "The device asked for is not there, or the bundle has no binary for it.",
    "Nothing falls back in silence.",
    "Use device='auto' or 'cpu'.",
)
_rule(
    "TC408",
    "not signed by a trusted key",
    "`require_signature=` asks for a signature, and the bundle has none beside it, or none by a key "
    "that is trusted, or one of other bytes.",
    "A bundle is code that runs with the rights of the process. No byte of it was mapped.",
    "Fetch the bundle again with its `.sig`; sign it, if you vouch for it; or trust the key named.",
)
_rule(
    "TC409",
    "revoked",
    "A key list revokes the bundle, or the key that signed it.",
    "Whoever revoked it knows a reason not to run it.",
    "Fetch a newer bundle, signed by a key that is trusted.",
)
_rule(
    "TC410",
    "weights are not beside the bundle",
    "The bundle keeps its weights in a file beside it, by digest, and that file is not there, cannot "
    "be read, or has another size.",
    "Other weights are another model.",
    "Move the two files together. `tcexport weights inside` makes one file of them.",
)
_rule(
    "TC420",
    "no GPU",
    "NVIDIA's driver is there and shows no device, or cannot be used.",
    "The bundle's code for GPUs has nothing to run on.",
    "See what `nvidia-smi` lists and whether CUDA_VISIBLE_DEVICES hides it; give a container its "
    "GPUs; or load with device='cpu'.",
    "error[TC420] m.tcpkg was built for cuda:sm_80+sm_90+ptx; the driver is there, but it sho"
    "ws no device\n"
    "  note: CUDA_VISIBLE_DEVICES=\n"
    "  try: device='cpu'",
)
_rule(
    "TC421",
    "no NVIDIA driver",
    "The library libcuda.so.1, which comes with NVIDIA's driver, cannot be loaded.",
    "Nothing can be run on a GPU without it.",
    "Install the driver, or start the container with its GPUs (`docker run --gpus all`).",
    "error[TC421] m.tcpkg was built for cuda:sm_80+sm_90+ptx; found no driver: libcuda.so.1: "
    "cannot open shared object file: No such file or directory\n"
    "  try: install NVIDIA's driver",
)
_rule(
    "TC422",
    "driver too old",
    "The bundle's code for this GPU needs a driver for a later version of CUDA.",
    "The driver would refuse the code at the first call, or its PTX, of a version it does not know.",
    "Install a newer driver; no toolkit is needed.",
    "error[TC422] m.tcpkg was built for cuda:sm_80+sm_90+ptx; needs a driver for CUDA 13.0 or"
    " later, found one for CUDA 12.8\n"
    "  note: cuda:0 is NVIDIA A100, compute capability 8.0\n"
    "  try: install a newer driver",
)
_rule(
    "TC423",
    "no binary for this GPU",
    "The bundle holds neither machine code for the GPU's compute capability nor PTX that serves it.",
    "Machine code runs within one major capability, on the same minor and later ones; PTX on all "
    "later ones.",
    "Export with the architecture named, or with `+ptx`.",
    "error[TC423] m.tcpkg was built for cuda:sm_80; cuda:0 is NVIDIA H200, compute capability"
    " 9.0\n"
    "  try: export with --target cuda:sm_90",
)
_rule(
    "TC424",
    "CUDA library missing",
    "The CUDA runtime library that the code was built for is not found: neither in the process, nor "
    "by the system's loader, nor in its wheel.",
    "The driver does not bring it, and a bundle does not either.",
    "`pip install 'nvidia-cuda-runtime>=13,<14'`, or put its folder into LD_LIBRARY_PATH.",
    "error[TC424] m.tcpkg was built for CUDA 13 and needs libcudart.so.13, which is not found"
    "\n"
    "  try: pip install 'nvidia-cuda-runtime>=13,<14'",
)
_rule(
    "TC425",
    "not enough GPU memory",
    "The weights of the bundle do not fit into what is free on the GPU.",
    "Better known at load than in the middle of a call.",
    "End what else uses the GPU, choose another one, or load with device='cpu'.",
    "error[TC425] m.tcpkg has weights of 17179869184 bytes; found 8589934592 bytes free of 25"
    "769803776 on cuda:0\n"
    "  try: end what else uses the GPU (nvidia-smi)",
)
_rule(
    "TC501",
    "op not supported",
    "The graph holds operations that cannot be lowered, all listed with their lines.",
    "An approximation would be a wrong answer.",
    "Use one of the forms named, or open an issue with the op's name.",
)
_rule(
    "TC502",
    "lowering disagrees with the trace",
    "A lowered value has another shape or dtype than the trace says, or lowering assumes of a size "
    "what the trace does not.",
    "It would be a wrong answer.",
    "Open an issue with the message.",
)
_rule(
    "TC503",
    "compiler failed",
    "The compiler's process failed; what it last said is shown.",
    "Nothing was written.",
    "Open an issue with the message.",
)
_rule(
    "TC504",
    "verification failed",
    "The finished binary does not give eager's numbers at the sizes named.",
    "Such a file must not exist: it was not written.",
    "Open an issue with the message.",
)
_rule(
    "TC505",
    "no linker",
    "There is no C compiler to link the binary with.",
    "The kernels are compiled, but must be linked into a library.",
    "Install gcc or clang, or `pip install 'tcexport[cross]'`.",
)
_rule(
    "TC506",
    "unknown target",
    "The target named is not known, or cannot be built here.",
    "Nothing is built for another target in its place.",
    "Use one of the targets listed.",
)
_rule(
    "TC507",
    "indices without a bound",
    "A kernel reads or writes at positions that are data, and the contract knows no bound for the "
    "indices of this op.",
    "A position out of range would be answered with other numbers than eager's error.",
    "Open an issue with the name of the op.",
)
_rule(
    "TC520",
    "lowering of a custom op",
    "A function given in `lowerings` for an op of another library failed, or gave a kernel whose "
    "result has another dtype or shape than the op's fake says.",
    "The bundle would hold another op than the model.",
    "See docs/custom-ops.md: the function gets the op's arguments as tensor expressions and gives "
    "back a tensor expression.",
    "error[TC520] the lowering of mylib::gelu gives float32[n, 4], the op's fake float32[n, 8]",
)
_rule(
    "TC530",
    "no CUDA compiler",
    "The packages that compile GPU code are not installed, or in another version than the one that "
    "is pinned.",
    "GPU code is machine code in the bundle: a bundle that needed a compiler where it runs would "
    "not be ahead of time.",
    "`pip install 'tcexport[cuda]'`, which needs neither a GPU nor an installed CUDA.",
    "error[TC530] no CUDA compiler: nvidia-cuda-nvrtc is not installed",
)
_rule(
    "TC590",
    "internal error",
    "tcexport itself failed where it should not.",
    "Nothing was written.",
    "Open an issue with the message and, with `-v`, the traceback.",
)
_rule(
    "TC601",
    "call failed",
    "A kernel failed during a call, after all guards passed.",
    "The result is not there; nothing was returned in its place.",
    "Open an issue with the message.",
)
_rule(
    "TC602",
    "not enough memory",
    "The system did not give the memory that a call asked for. The model can be called again.",
    "The result is not there; nothing was returned in its place.",
    "Call with smaller sizes, free memory (`model.release_memory()`), or let `load(memory_limit=…)` "
    "refuse calls that need more than there is; `tcexport inspect` says what they need.",
)


# Codes that are easily taken for one another, or met on the way from one to another.
_RELATED = (
    ("TC001", "TC002", "TC003"),
    ("TC004", "TC005", "TC009"),
    ("TC006", "TC007", "TC008"),
    ("TC010", "TC115"),
    ("TC101", "TC109", "TC118", "TC119"),
    ("TC102", "TC107", "TC311"),
    ("TC103", "TC104", "TC113", "TC122", "TC124"),
    ("TC122", "TC321", "TC322", "TC323", "TC324"),
    ("TC105", "TC114"),
    ("TC105", "TC123", "TC325", "TC321"),
    ("TC106", "TC114", "TC115", "TC116", "TC121"),
    ("TC107", "TC108", "TC109"),
    ("TC110", "TC111", "TC112"),
    ("TC116", "TC312"),
    ("TC117", "TC504"),
    ("TC120", "TC501", "TC520"),
    ("TC130", "TC131", "TC132", "TC133", "TC134", "TC135"),
    ("TC101", "TC190"),
    ("TC201", "TC202", "TC210", "TC212"),
    ("TC211", "TC107"),
    ("TC220", "TC221", "TC222", "TC223", "TC224"),
    ("TC222", "TC226"),
    ("TC224", "TC225", "TC320"),
    ("TC210", "TC301", "TC307"),
    ("TC302", "TC303", "TC308"),
    ("TC304", "TC305", "TC306"),
    ("TC309", "TC311"),
    ("TC310", "TC407"),
    ("TC420", "TC421", "TC407"),
    ("TC422", "TC423", "TC424", "TC425"),
    ("TC401", "TC402", "TC403"),
    ("TC402", "TC408", "TC409"),
    ("TC402", "TC410"),
    ("TC014", "TC408"),
    ("TC015", "TC016"),
    ("TC404", "TC405", "TC506"),
    ("TC301", "TC406"),
    ("TC502", "TC503", "TC504", "TC590"),
    ("TC505", "TC011", "TC530"),
    ("TC012", "TC590"),
    ("TC601", "TC602", "TC590"),
)


def related(code: str) -> tuple[str, ...]:
    """The codes that stand beside one in `_RELATED`."""
    near = [each for group in _RELATED if code in group for each in group if each != code]
    return tuple(dict.fromkeys(near))
