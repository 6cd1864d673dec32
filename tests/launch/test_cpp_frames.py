"""What torch 2.13 wrote when rank 0 of two was killed, shortened."""

import io

from descend.launch.cpp_frames import FILE, copy_without_frames

WARNING = "[rank1]:[W1123 20:11:43.9 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=4): Failed to recv\n"
FRAMES = [
    "Exception raised from recvBytes at /__w/torch/csrc/c10d/Utils.hpp:787 (most recent call first):\n",
    "frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7fe5ded6db8d in /lib/libc10.so)\n",
    "frame #13: <unknown function> + 0x6748693 (0x7f1730548693 in /lib/libtorch_cpu.so)\n",
    "<omitting python frames>\n",
    "\n",
]
OWN = [
    "error: rank 0 was killed\n",
    "\n",
    "a frame #1 of mine\n",
    "Traceback (most recent call last):\n",
    '  File "x.py"\n',
]


def test_frames_are_left_out_and_nothing_else(tmp_path):
    shown = io.StringIO()
    copy_without_frames([WARNING, *FRAMES, *OWN], shown, tmp_path)
    assert shown.getvalue() == "".join([WARNING, *OWN])
    assert (tmp_path / FILE).read_text() == "".join([WARNING, *FRAMES])


def test_without_a_folder_nothing_is_written(tmp_path):
    shown = io.StringIO()
    copy_without_frames(FRAMES, shown, None)
    copy_without_frames(FRAMES, shown, tmp_path / "not there")
    assert shown.getvalue() == ""
    assert list(tmp_path.iterdir()) == []


def test_without_frames_there_is_no_file(tmp_path):
    copy_without_frames(OWN, io.StringIO(), tmp_path)
    assert list(tmp_path.iterdir()) == []
