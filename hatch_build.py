"""Compiles descend/graph/schema/*.proto into one descriptor set when the package is built.

A descriptor set is data, not generated code, so one file serves every protobuf runtime from 4.25 to 7
(generated modules refuse any runtime older than the compiler that wrote them). The build backend runs
`SchemaHook`; `python hatch_build.py` does the same in a checkout.
"""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SCHEMA = Path(__file__).parent / "descend" / "graph" / "schema"


def compile_schema(folder: Path = SCHEMA) -> Path:
    """Write `schema.binpb` beside the .proto files and return its path."""
    import grpc_tools
    from grpc_tools import protoc

    target = folder / "schema.binpb"
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    sources = sorted(path.name for path in folder.glob("*.proto"))
    arguments = ["protoc", f"-I{folder}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={target}"]
    if protoc.main([*arguments, *sources]) != 0:
        raise RuntimeError(f"protoc could not compile the schema in {folder}; its own message stands above")
    return target


class SchemaHook(BuildHookInterface[Any]):
    """Runs `compile_schema` before files are collected, for wheels, sdists and editable installs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the schema and name the result as a build artifact."""
        build_data["artifacts"].append(str(compile_schema().relative_to(self.root)))


if __name__ == "__main__":
    sys.stdout.write(f"{compile_schema()}\n")
