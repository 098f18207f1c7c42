"""Recipes are merged line by line into their script, into another one, and into edited copies."""

import pytest

from recipes.merge import merge, with_recipe
from recipes.recipe import Recipe
from recipes.refresh import diff

BASE = """class Args:
    rate: float = 1
    anneal: bool = True
    clip: float = 2


def f(x):
    y = x
    z = y
    run.start(x, agent=y)
    return z


# That was PPO.


def main():
    pass


if __name__ == "__main__":
    main()
"""


def edited(*pairs):
    """BASE with texts in place of others."""
    text = BASE
    for old, new in pairs:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def test_neighbouring_lines_are_no_conflict():
    ours = edited(("rate: float = 1", "rate: float = 3"), ("clip: float = 2", "clip: float = 4"))
    theirs = edited(("    anneal: bool = True\n", "    aim: float = 5\n"))
    expected = "    rate: float = 3\n    aim: float = 5\n    clip: float = 4\n"
    assert merge(BASE, ours, theirs) == edited(
        ("    rate: float = 1\n    anneal: bool = True\n    clip: float = 2\n", expected)
    )


def test_what_both_add_at_one_place_follows_in_order():
    """Options of both stay in the class, and functions behind it, whichever recipe comes first."""
    function = ("def f(x)", "def g():\n    pass\n\n\ndef f(x)")
    with_function = edited(("    clip: float = 2\n", "    clip: float = 2\n    one: int = 1\n"), function)
    with_option = edited(("    clip: float = 2\n", "    clip: float = 2\n    two: int = 2\n"))
    options = "    one: int = 1\n    two: int = 2\n"
    merged = edited(("    clip: float = 2\n", f"    clip: float = 2\n{options}"), function)
    assert merge(BASE, with_function, with_option) == merged
    options = "    two: int = 2\n    one: int = 1\n"
    merged = edited(("    clip: float = 2\n", f"    clip: float = 2\n{options}"), function)
    assert merge(BASE, with_option, with_function) == merged


def test_an_inner_block_ends_before_the_outer_one_goes_on():
    base = "for x in y:\n    for z in x:\n        f(z)\nend()\n"
    inner = base.replace("end()", "        g(z)\nend()")
    outer = base.replace("end()", "    h(x)\nend()")
    expected = base.replace("end()", "        g(z)\n    h(x)\nend()")
    assert merge(base, inner, outer) == merge(base, outer, inner) == expected


def test_the_same_line_is_a_conflict():
    ours = edited(("z = y", "z = y + 1"))
    with pytest.raises(ValueError, match=r"both change these lines of s.py:\n9:     z = y$"):
        merge(BASE, ours, edited(("z = y", "z = y + 2")), "s.py")
    assert merge(BASE, ours, ours) == ours
    inside = edited(("    z = y\n", "    z = y\n    w = z\n"))
    with pytest.raises(ValueError, match="10: "):
        merge(BASE, edited(("    y = x\n    z = y\n    run.start(x, agent=y)\n", "")), inside)


def test_parts_of_both_are_started():
    """Arguments that both add to a call, each once; another change of the same line is a conflict."""
    call = "    run.start(x, agent=y)\n"
    ours = edited((call, "    run.start(x, agent=y, envs=envs)  # why\n"))
    theirs = edited((call, "    run.start(x, agent=y, best=best, envs=envs)\n"))
    assert merge(BASE, ours, theirs) == edited((call, "    run.start(x, agent=y, envs=envs, best=best)  # why\n"))
    with pytest.raises(ValueError, match="run.start"):
        merge(BASE, ours, edited((call, "    run.start(w, agent=y)\n")))


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A function from a text to the recipe that makes it of BASE."""
    monkeypatch.setattr("recipes.recipe.ROOT", tmp_path)
    (tmp_path / "s.py").write_text(BASE)
    return lambda text: Recipe(tmp_path / "r.diff", {"script": "s.py"}, diff("s.py", BASE, text))


def test_a_name_that_both_define(recipe):
    """Python would take the second definition without a word."""
    one = edited(("def f(x)", "class Moments:\n    pass\n\n\ndef f(x)"))
    other = edited(("# That was", "class Moments:\n    x = 1\n\n\n# That was"))
    with pytest.raises(ValueError, match="both define Moments"):
        with_recipe(one, recipe(other))
    option = edited(("    rate", "    aim: int = 1\n    rate"))
    with pytest.raises(ValueError, match="both define aim"):
        with_recipe(option, recipe(edited(("    clip: float = 2\n", "    clip: float = 2\n    aim: int = 2\n"))))
    assert with_recipe(one, recipe(option)) == edited(
        ("def f(x)", "class Moments:\n    pass\n\n\ndef f(x)"), ("    rate", "    aim: int = 1\n    rate")
    )


def test_a_name_that_one_uses_and_the_other_takes_out(recipe):
    """Else it is noticed where the line runs, which may be after hours."""
    without_f = edited(("def f(x):\n    y = x\n    z = y\n    run.start(x, agent=y)\n    return z\n\n\n", ""))
    with pytest.raises(ValueError, match="one uses f, which the other takes out"):
        with_recipe(without_f, recipe(edited(("float = 2", "float = f(2)"))))
    assert "f(2)" in with_recipe(BASE, recipe(edited(("float = 2", "float = f(2)"))))
