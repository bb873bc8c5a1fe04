"""What is said where a framework is missing, or of a version that nobody tried."""

from __future__ import annotations

import warnings

import pytest

from sidestream import integrations
from support.process import run


@pytest.mark.parametrize(
    ("extra", "modules"),
    [
        ("lightning", ["lightning", "pytorch_lightning"]),
        ("accelerate", ["accelerate"]),
        ("transformers", ["transformers"]),
    ],
)
def test_a_missing_framework_is_an_import_error_that_names_the_extra(
    extra: str, modules: list[str]
) -> None:
    script = run(f"""
        import importlib, warnings
        warnings.simplefilter("ignore")  # of accelerate, where that is there
        for name in {modules}:
            sys.modules[name] = None
        class Gone:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {modules}:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        for name in {modules}:
            del sys.modules[name]
        sys.meta_path.insert(0, Gone())
        if "transformers" in {modules}:
            import types
            sys.modules["accelerate"] = types.ModuleType("accelerate")
        try:
            importlib.import_module("sidestream.integrations.{extra}")
        except ImportError as error:
            say(error)
    """)
    assert script.stderr == ""
    assert f"pip install 'sidestream[{extra}]'" in script.stdout


def test_the_core_imports_no_integration() -> None:
    script = run("""
        import sidestream
        say([name for name in sys.modules if name.startswith("sidestream.integrations")])
    """)
    script.assert_clean("[]")


@pytest.mark.parametrize("version", ["2.0.9", "2.7.0", "3.0.0.dev1"])
def test_a_version_that_nobody_tried_warns_once_and_names_both(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(integrations.MADE_FOR, "lightning", ("2.1", "2.6"))
    integrations.check_version.cache_clear()
    with pytest.warns(RuntimeWarning, match=rf"lightning {version} .* 2\.1 to 2\.6"):
        integrations.check_version("lightning", version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        integrations.check_version("lightning", version)


@pytest.mark.parametrize("version", ["2.1.0", "2.6.6", "2.6.6+cpu"])
def test_a_version_that_was_tried_does_not_warn(version: str) -> None:
    integrations.check_version.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        integrations.check_version("lightning", version)
