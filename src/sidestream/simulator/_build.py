"""Compiles the simulator's C++ on first use and keeps the result. Knows no simulator.

A build belongs to one torch, one Python and one state of the sources; its folder is named after
all three. Processes that build at the same time wait for one another at a file lock, and a build
becomes visible by one atomic rename, so a build that was killed half-way leaves nothing to load.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_NAME = "sidestream_simulator_extension"
_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = ["-O1", "-fvisibility=hidden"]  # -O2 compiles longer and runs no faster (measured)


class BuildError(RuntimeError):
    """The simulator's extension cannot be compiled; the message names what is missing."""


def load() -> Any:
    """Load the extension module, compiling it if this torch and Python have none yet.

    Returns:
        The extension module.

    Raises:
        BuildError: If ninja, setuptools, a C++ compiler or Python's headers are missing, or the
            compiler fails.
    """
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    folder = cache_folder()
    library = folder / f"{_NAME}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock"):
            if not library.exists():  # not built by the process that held the lock before
                return _compile(folder / "build", library)
    return _import(library)


def cache_folder() -> Path:
    """Where the build for this torch, Python and state of the sources is kept.

    Below torch's own folder for extensions: `TORCH_EXTENSIONS_DIR` if set, else the user's cache
    folder. It may be deleted at any time that no process is compiling.
    """
    root = os.environ.get("TORCH_EXTENSIONS_DIR")
    if not root:  # as torch.utils.cpp_extension names it, which looks for CUDA and talks of it
        from torch import _appdirs

        root = os.path.realpath(_appdirs.user_cache_dir("torch_extensions"))  # type: ignore[no-untyped-call]
    digest = hashlib.sha256(repr(_FLAGS).encode())
    for source in _files("*"):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    tag = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
    return Path(root) / _NAME / f"torch-{torch.__version__}-{tag}-{digest.hexdigest()[:12]}"


def _files(pattern: str) -> list[Path]:
    return sorted(p for p in _SOURCES.glob(pattern) if p.suffix in (".cpp", ".h"))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # let go of by the system if this process dies
        yield


def _compile(folder: Path, library: Path) -> ModuleType:
    _check_tools()
    from torch.utils import cpp_extension

    shutil.rmtree(folder, ignore_errors=True)  # of a build that was killed, torch's lock included
    folder.mkdir()
    sys.stderr.write(
        f"sidestream.simulator: compiling for torch {torch.__version__} (once, about half a "
        f"minute on two cores) into {folder.parent}\n"
    )
    try:
        module: ModuleType = cpp_extension.load(
            name=_NAME,
            sources=[str(p) for p in _files("*.cpp")],
            extra_cflags=_FLAGS,
            build_directory=str(folder),
        )
    except Exception as error:
        raise BuildError(f"sidestream.simulator: the C++ compiler failed:\n{error}") from error
    finished = library.with_suffix(".new")
    shutil.copy2(folder / f"{_NAME}.so", finished)
    finished.replace(library)
    shutil.rmtree(folder, ignore_errors=True)
    sys.modules[_NAME] = module
    return module


def _check_tools() -> None:
    from torch.utils import cpp_extension

    missing = []
    if not cpp_extension.is_ninja_available():
        missing.append("ninja (pip install 'sidestream[simulator]')")
    if importlib.util.find_spec("setuptools") is None:
        missing.append("setuptools (pip install 'sidestream[simulator]')")
    compiler = os.environ.get("CXX", "c++")  # as torch asks for it
    if shutil.which(compiler.split()[0]) is None:
        missing.append(
            f"the C++ compiler {compiler!r} (g++, from the system, such as: apt install g++)"
        )
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        missing.append(
            f"Python's headers in {include} (from the system, such as: apt install python3-dev)"
        )
    if missing:
        raise BuildError(
            "sidestream.simulator compiles itself on first use and lacks: " + "; ".join(missing)
        )


def _import(library: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(library))
    spec = importlib.util.spec_from_file_location(_NAME, library, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[_NAME] = module
    return module
