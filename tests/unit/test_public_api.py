"""What users may rely on: names, signatures, docstrings, and an import that needs torch only."""

from __future__ import annotations

import ast
import inspect
import io
import os
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import sidestream
from sidestream import device as seam

PACKAGE = Path(sidestream.__file__).parent
MODULES = sorted(PACKAGE.glob("*.py"))
# The core is all that stands on the top level, but for what is like `diagnose`: the command line,
# and the mode that checks every batch, which is imported where somebody asks for it.
NOT_CORE = {"__main__.py", "verify.py"}
# Its lines of code, without blanks, comments and docstrings. A ratchet, to be turned down only.
# The aim is 1,500: that is what the loader took before packing, resuming, statistics and every
# kind of batch came to it.
CORE_LINES = 2565


def test_the_public_names() -> None:
    assert sidestream.__all__ == ["AsynchronousLoader", "LoaderStatistics", "ThreadDataLoader"]
    assert all(hasattr(sidestream, name) for name in sidestream.__all__)


SIGNATURES = {
    "AsynchronousLoader": "(data, device=None, *, buffer_size=2, num_batches=None, transform=None,"
    " **dataloader_kwargs)",
    "AsynchronousLoader.close": "(self)",
    "AsynchronousLoader.load_state_dict": "(self, state)",
    "AsynchronousLoader.state_dict": "(self)",
    "AsynchronousLoader.statistics": "(self)",
    "LoaderStatistics": "(num_epochs=0, num_batches=0, num_bytes=0, warm_up_s=0.0, num_steps=0,"
    " elapsed_s=0.0, consumer_wait_s=0.0, mean_waiting=0.0, num_loaded=0, source_wait_s=0.0,"
    " staging_s=0.0, staging_wait_s=0.0, room_wait_s=0.0, link_bytes_per_s=None, num_timed=0,"
    " device_elapsed_s=None, device_wait_s=None, peak_device_bytes=0, peak_staging_bytes=0,"
    " epoch=None)",
    "LoaderStatistics.metrics": "(self)",
    "LoaderStatistics.verdict": "(self)",
    "ThreadDataLoader": "(dataset, batch_size=1, shuffle=None, sampler=None, batch_sampler=None,"
    " num_workers=0, collate_fn=None, pin_memory=False, drop_last=False, timeout=0,"
    " worker_init_fn=None, multiprocessing_context=None, generator=None, *, prefetch_factor=None,"
    " persistent_workers=False, pin_memory_device='', in_order=True, copy_dataset=False)",
    "ThreadDataLoader.check_worker_number_rationality": "(self)",
}


def _public_things() -> dict[str, object]:
    things: dict[str, object] = {}
    for name in sidestream.__all__:
        kind = getattr(sidestream, name)
        things[name] = kind
        things |= {
            f"{name}.{member}": value
            for member, value in vars(kind).items()
            if not member.startswith("_") and callable(value)
        }
    return things


def test_the_signatures() -> None:
    """To be changed on purpose, with a fragment in changelog.d."""
    found = {}
    for name, thing in _public_things().items():
        signature = inspect.signature(thing)
        parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        plain = signature.replace(parameters=parameters, return_annotation=signature.empty)
        found[name] = str(plain)
    assert found == SIGNATURES


@pytest.mark.parametrize("name", _public_things())
def test_every_public_thing_has_a_docstring(name: str) -> None:
    thing = _public_things()[name]
    text = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    assert text
    assert text.strip()


def test_every_module_and_every_public_definition_in_it_has_a_docstring() -> None:
    missing = []
    for path in [*MODULES, *sorted(PACKAGE.glob("threads/*.py"))]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        missing += [
            f"{path.name}: {getattr(node, 'name', 'module')}"
            for node in ast.walk(tree)
            if isinstance(node, kinds)
            and not getattr(node, "name", "").startswith("_")
            and not ast.get_docstring(node)
            and not _is_inside_a_function(node, tree)
        ]
    assert missing == []


def _is_inside_a_function(node: ast.AST, tree: ast.Module) -> bool:
    return any(
        isinstance(outer, ast.FunctionDef) and node is not outer and node in ast.walk(outer)
        for outer in ast.walk(tree)
    )


# ---- the import


IMPORTS = """
import sys
import torch, torch.utils.data
{before}
first = set(sys.modules)
import sidestream
allowed = set(sys.stdlib_module_names) | {{"sidestream", "torch"}}
extra = {{name.partition(".")[0] for name in set(sys.modules) - first}} - allowed
print(sorted(extra))
print(sorted(name for name in sys.modules if name.startswith("sidestream.") and
      name.count(".") == 1 and hasattr(sys.modules[name], "__path__")))
"""


def _imported(path: Path, before: str = "") -> list[str]:
    """What `import sidestream` brings in beside torch and the standard library."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORTS.format(before=before)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(path)},
    )
    assert result.stderr == ""
    return result.stdout.splitlines()


def test_import_needs_torch_and_the_standard_library_only() -> None:
    assert _imported(PACKAGE.parent) == ["[]", "[]"]


def test_the_check_of_the_import_can_fail(tmp_path: Path) -> None:
    copy = tmp_path / "sidestream"
    copy.mkdir()
    for path in MODULES:
        (copy / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "an_extra.py").write_text("")
    with (copy / "errors.py").open("a", encoding="utf-8") as file:
        file.write("\nimport an_extra\n")
    (copy / "extras").mkdir()
    (copy / "extras" / "__init__.py").write_text("")
    with (copy / "device.py").open("a", encoding="utf-8") as file:
        file.write("\nimport sidestream.extras\n")
    assert _imported(tmp_path) == ["['an_extra']", "['sidestream.extras']"]


# ---- its size


def code_lines(text: str) -> int:
    """Lines with code on them: no blanks, no comments, no docstrings."""
    strings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    nothing = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER, tokenize.ENCODING,
    }  # fmt: skip
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in nothing:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - strings)


def test_code_lines_are_counted_without_blanks_comments_and_docstrings() -> None:
    text = '''
"""Doc.

More."""

# comment
x = 1  # why

def f():
    """D."""
    return (
        x
    )
'''
    assert code_lines(text) == 5


def test_the_core_stays_small() -> None:
    lines = {
        path.name: code_lines(path.read_text(encoding="utf-8"))
        for path in MODULES
        if path.name not in NOT_CORE
    }
    assert sum(lines.values()) <= CORE_LINES, lines


def test_this_torch_tells_who_holds_a_storage() -> None:
    """Where this fails, the use count of a storage has changed its meaning or is gone: device
    memory is then released through `record_stream`, and grows with how far the host runs ahead.
    """
    assert seam.CAN_TELL_HOLDERS is True
