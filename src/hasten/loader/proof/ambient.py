"""What the script's code does to its surroundings: to modules, files and networks."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hasten.loader.proof.bindings import called
from hasten.loader.proof.library import LOOKING
from hasten.loader.proof.source import is_user_file
from hasten.loader.proof.word_list import words

if TYPE_CHECKING:
    from hasten.loader.proof.reads import Reads
    from hasten.loader.proof.scopes import VariableScope

SETTINGS = words(
    "chdir fchdir set_default_dtype set_default_tensor_type set_default_device set_image_backend "
    "setlocale putenv unsetenv set_printoptions seterr seterrcall errstate set_flush_denormal "
    "getcontext setcontext localcontext captureWarnings simplefilter filterwarnings"
)
"""What changes a setting of the whole process."""
_MILD = {"ignore", "warn", "default", "once", "always", "module"}
"""What NumPy and `warnings` may be told to do with what they notice, and no item sees."""
_TOLD = {"action", "all", "divide", "over", "under", "invalid"}
_STORED = {"showwarning", "LOAD_TRUNCATED_IMAGES"}

_OF_ALL = words("active_children active_count waitpid wait3 wait4 waitid flags")
"""What tells of the processes of a script, and `torch.backends.cudnn.flags`, which sets some."""
LATE = words("import_module __import__ run_path run_module exec_module")
_OF_MODULES = words(
    "eval train load_state_dict to half double float bfloat16 cuda cpu zero_grad requires_grad_ "
    "type apply step update_parameters register_buffer register_parameter add_module"
)
_OF_TRAINING = {"_buffers", "_parameters", "param_groups"}
_OF_VECTORS = words("vector_to_parameters clip_grad_norm_ clip_grad_value_")
_FILING = words(
    "save savez savez_compressed savetxt write_text write_bytes write_array dump to_csv to_json "
    "to_pickle to_parquet tofile copy copyfile copy2 copytree rename replace move unlink remove "
    "mkdir makedirs touch imwrite symlink symlink_to link hardlink_to rmdir rmtree truncate "
    "system run Popen call check_call check_output extractall extract memmap open_memmap mmap "
    "from_file SharedMemory ZipFile File FileHandler RotatingFileHandler NamedTemporaryFile "
    "mkstemp SummaryWriter make_archive HDFStore ExcelWriter"
)
_SAVING = ("save", "imsave", "to_feather", "to_hdf", "to_excel", "to_sql", "write_")
_OF_TEXTS = words("copy replace remove call run extract")
"""Those of the above that are also methods of things other than files."""
_READ_ONLY = ("r", "c", None)


def against(node: ast.AST, scope: VariableScope, reads: Reads) -> str:
    """Return what a node does to anything that items read; empty if it does nothing."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return _imports(node, scope)
    if isinstance(node, ast.Attribute) and node.attr in _STORED:
        return f"the script uses {node.attr}"
    if not isinstance(node, ast.Call):
        return ""
    name = called(node)
    records = name == "catch_warnings" and bool(node.keywords)
    sets = name in SETTINGS and not _is_mild(node)
    if records or sets or name in LATE or name in _OF_ALL:
        return f"the script calls {name}"
    if _patches(node):
        return "the script patches what it names"
    return _changes_modules(node, scope, reads) or _writes_files(node, scope, reads)


def _is_mild(node: ast.Call) -> bool:
    """Return whether a call only asks for warnings, or for none."""
    told = node.args[:1] + [one.value for one in node.keywords if one.arg in _TOLD]
    return bool(told) and all(getattr(one, "value", None) in _MILD for one in told)


def _changes_modules(node: ast.Call, scope: VariableScope, reads: Reads) -> str:
    leading = scope.names.leading
    if "_buffers" in leading and scope.is_near(node.func):
        return "the script calls a network, and items read what it keeps"
    if not reads.has_modules and not leading & _OF_TRAINING:
        return ""
    name = called(node)
    given = list(node.args) if name in _OF_VECTORS else []
    if name in _OF_MODULES and isinstance(node.func, ast.Attribute):
        given.append(node.func.value)
    if any(map(scope.is_near, given)):
        return f"the script calls {name} of a network that items read"
    return ""


def _writes_files(node: ast.Call, scope: VariableScope, reads: Reads) -> str:
    name = called(node)
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    modes = [one.value for one in node.keywords if one.arg == "mmap_mode"]
    if any(getattr(one, "value", "") not in _READ_ONLY for one in modes):
        name = "memmap"
    if (
        name not in _FILING
        and not name.startswith(_SAVING)
        and not (name == "open" and _writes(node))
    ):
        return ""
    if name in _OF_TEXTS and not (owner is not None and scope.is_module(owner)):
        return ""
    if reads.files & LOOKING:
        return f"the script calls {name}, and items look which files there are"
    is_torch = isinstance(owner, ast.Name) and owner.id == "torch" and name == "save"
    if reads.has_maps and not is_torch and name not in ("mkdir", "makedirs"):
        return f"the script calls {name}, and items read a mapped file"
    return ""


def _writes(node: ast.Call) -> bool:
    given = [*node.args[:2], *(one.value for one in node.keywords if one.arg == "mode")]
    texts = [one.value for one in given if isinstance(one, ast.Constant)]
    modes = [one for one in texts if isinstance(one, str) and set(one) <= set("rwxabt+U")]
    return any(set(one) & set("wxa+") for one in modes) or len(texts) < len(given[1:])


def _patches(node: ast.Call) -> bool:
    """Return whether a call is one of `unittest.mock.patch`."""
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr in ("object", "dict", "multiple"):
        function = function.value
    return getattr(function, "id", getattr(function, "attr", "")) == "patch" and bool(node.args)


def _imports(node: ast.Import | ast.ImportFrom, scope: VariableScope) -> str:
    """Return what unseen code an import would run; empty if none.

    An optional part of a script may import what is not installed; then nothing runs.
    """
    if isinstance(node, ast.ImportFrom) and node.level:
        ends = f".{node.module or node.names[0].name}"
        known = any(name.endswith(ends) for name in sys.modules)
        return "" if known else f"the script imports {ends}, which is not loaded yet"
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [
        one.name for one in node.names]  # fmt: skip
    is_option = scope.unit.function is not None and scope.unit.frame is None
    for name in names:
        places = [] if name in sys.modules else _places(name.partition(".")[0])
        if places is None and is_option and not scope.known.moves_path:
            continue
        if places is None or any(is_user_file(place) for place in places):
            return f"the script imports {name}, which is not loaded yet"
    return ""


def _places(root: str) -> list[str] | None:
    """Return where a package lies, as far as it is not Python's own; None where there is none."""
    if root in sys.stdlib_module_names:
        return []
    try:
        spec = find_spec(root)
    except (ImportError, ValueError):
        return [""]  # there is something, whatever it is
    if spec is None:
        return None
    return [spec.origin] if spec.origin else list(spec.submodule_search_locations or [""])
