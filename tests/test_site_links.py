"""Dead links and addresses of other hosts in a built site are found."""

from tools.site_links import main, problems


def site(folder, body):
    (folder / "sub").mkdir()
    (folder / "index.html").write_text(f"<html><body>{body}</body></html>")
    (folder / "sub" / "page.html").write_text('<h1 id="top">x</h1><a href="../index.html#here">up</a>')
    return folder


def test_a_site_without_problems(tmp_path, capsys):
    body = '<p id="here"></p><a href="sub/page.html#top">x</a><a href="https://example.org">x</a><img src="data:,">'
    assert main([str(site(tmp_path, body))]) == 0
    assert capsys.readouterr().out == ""


def test_every_problem_is_listed(tmp_path, capsys):
    body = (
        '<p id="here"></p><a href="sub/none.html">x</a><a href="sub/page.html#none">x</a><a href="#gone">x</a>'
        '<script src="https://example.org/a.js"></script><link rel="stylesheet" href="//example.org/a.css">'
    )
    assert problems(site(tmp_path, body)) == [
        "index.html: sub/none.html: there is no such file",
        "index.html: sub/page.html#none: there is no such anchor",
        "index.html: #gone: there is no such anchor",
        "index.html: https://example.org/a.js: is fetched from another host",
        "index.html: //example.org/a.css: is fetched from another host",
    ]
    assert main([str(tmp_path)]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_a_folder_without_a_site(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "index.html" in capsys.readouterr().err
