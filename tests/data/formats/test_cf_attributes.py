"""The attributes of netCDF's conventions, as netCDF4-python and xarray mean them.

Files are written by h5py in the form of netCDF-4; scipy reads the same variables and attributes in netCDF's older form.
"""

import io
import math
import pickle  # as readers are sent to worker processes
import re

import h5py
import numpy as np
import pytest
from scipy.io import netcdf_file

from descend.data import read
from descend.data.formats import cf_attributes as hdf5_blocks
from descend.data.formats.cf_attributes import StoredRows
from descend.errors import DataError

NAN = math.nan
DEFAULT_FLOAT = 9.969209968386869e36


@pytest.fixture
def variables(tmp_path):
    """A function that writes variables, (values, attributes) each, and reads them."""

    def made(netcdf=True, options=None, **variables):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            if netcdf:
                file.attrs["_NCProperties"] = "version=2,netcdf=4.9.2,hdf5=1.14.0"
            for name, (values, attributes) in variables.items():
                file[name] = values
                file[name].attrs.update(attributes)
        return read(tmp_path / "a.h5", **(options or {}))

    return made


def check(reader, name, expected, dtype):
    expected = np.array(expected, dtype)
    assert reader.fields[name].dtype == dtype
    whole = np.arange(len(reader))
    for ids in (whole, whole[::-1], whole[1:2]):
        found = reader.read(ids)[name]
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected[ids], rtol=1e-6, equal_nan=dtype != np.int64)


i2, f4, f8 = np.int16, np.float32, np.float64
PLUS = {"add_offset": f4(1)}


@pytest.mark.parametrize(
    ("stored", "attributes", "values", "dtype"),
    [
        # a factor and an offset, and the type of what comes of them
        (i2([1, 2, -9]), {"scale_factor": f4(0.01), "add_offset": f4(273.15)}, [273.16, 273.17, 273.06], f4),
        (i2([1, 2, 3]), {"scale_factor": f8(0.5)}, [0.5, 1, 1.5], f8),
        (i2([1, 2, 3]), {"add_offset": f4(0.5)}, [1.5, 2.5, 3.5], f4),
        (i2([1, 2, 3]), {"scale_factor": 2}, [2, 4, 6], f8),
        (i2([1, 2, 3]), {"scale_factor": f4([0.5])}, [0.5, 1, 1.5], f4),  # of one entry, as the library writes them
        (i2([1, 2, 3]), {"scale_factor": "0.5"}, [0.5, 1, 1.5], f8),  # text, as some programs write
        (np.int32([16777217, 1, 2]), {"scale_factor": f4(1), "add_offset": f4(1)}, [16777218, 2, 3], f8),
        (f4([1, 2, 3]), {"scale_factor": f4(2)}, [2, 4, 6], f4),
        (f8([0.1, 2, 3]), {"scale_factor": f4(2)}, [0.2, 4, 6], f8),
        (i2([1, 2, 3]), {"scale_factor": f4(1), "add_offset": f4(0)}, [1, 2, 3], i2),  # a pair that scales nothing
        (np.array([1, 2, 3], ">i2"), {"scale_factor": np.array([0.5], ">f4")}, [0.5, 1, 1.5], f4),
        # what is missing
        (f4([1, DEFAULT_FLOAT, 3]), {"_FillValue": f4(DEFAULT_FLOAT)}, [1, NAN, 3], f4),
        (f4([1, -999, 3]), {"missing_value": f4(-999)}, [1, NAN, 3], f4),
        (f4([1, -999, -998]), {"missing_value": f4([-999, -998])}, [1, NAN, NAN], f4),
        (f4([1, -999.9, 3]), {"missing_value": f8(-999.9)}, [1, NAN, 3], f4),  # of another type, rounded to this one
        (f4([1, -999, 3]), {"missing_value": "-999"}, [1, NAN, 3], f4),
        (f4([1, -999, -1]), {"missing_value": f4(-999), "_FillValue": f4(-1)}, [1, NAN, NAN], f4),
        (f4([1, NAN, 3]), {"_FillValue": f4(NAN)}, [1, NAN, 3], f4),
        (i2([1, -9, 3]), {"scale_factor": f4(0.5), "_FillValue": i2(-9)}, [0.5, NAN, 1.5], f4),
        (i2([1, -9, 3]), {"scale_factor": f4(0.5), "missing_value": f4(-9)}, [0.5, NAN, 1.5], f4),
        (i2([1, -9, 3]), {"scale_factor": f4(0.5), "missing_value": f4(1e20)}, [0.5, -4.5, 1.5], f4),
        (i2([1, 2, 3]), {"_FillValue": i2(-9)}, [1, 2, 3], i2),
        # what is not valid
        (f4([1, 2, 3]), {"valid_min": f4(1.5)}, [NAN, 2, 3], f4),
        (f4([1, 2, 3]), {"valid_max": 2}, [1, 2, NAN], f4),
        (f4([0.1, 0.2, 0.3]), {"valid_max": f8(0.2), "valid_min": f8(0.1)}, [0.1, 0.2, NAN], f4),
        (f4([1, 2, 3]), {"valid_range": f4([1.5, 2.5])}, [NAN, 2, NAN], f4),
        (i2([1, 2, 3]), {"valid_range": i2([2, 3]), "scale_factor": f4(0.5)}, [NAN, 1, 1.5], f4),
        (i2([1, 2, 3]), {"valid_range": f4([0.75, 1.25]), "scale_factor": f4(0.5)}, [NAN, 1, NAN], f4),
        # unsigned integers
        (np.int8([1, -1, 3]), {"_Unsigned": "true"}, [1, 255, 3], np.uint8),
        (np.int8([1, -1, -2]), {"_Unsigned": b"true", "_FillValue": np.int8(-1), **PLUS}, [2, NAN, 255], f4),
        (np.int8([1, -1, -2]), {"_Unsigned": "true", "_FillValue": np.uint8(255), **PLUS}, [2, NAN, 255], f4),
        (np.int8([1, -1, -2]), {"_Unsigned": "true", "valid_max": np.int8(-2), **PLUS}, [2, NAN, 255], f4),
        (np.int8([1, -1, 3]), {"_Unsigned": "true", "missing_value": math.inf}, [1, 255, 3], np.uint8),
        (np.uint8([1, 255, 3]), {"_Unsigned": "false"}, [1, -1, 3], np.int8),
        (i2([1, -1, 3]), {"_Unsigned": "true"}, [1, 65535, 3], np.uint16),
        (f4([1, -1, 3]), {"_Unsigned": "true"}, [1, -1, 3], f4),
        # what the library fills in
        (f4([1, DEFAULT_FLOAT, 3]), {}, [1, NAN, 3], f4),
        (f8([1, DEFAULT_FLOAT, 3]), {}, [1, NAN, 3], f8),
        (i2([1, -32767, 3]), {"scale_factor": f4(0.5)}, [0.5, NAN, 1.5], f4),
        (i2([1, -32767, 3]), {"_FillValue": i2(7)}, [1, -32767, 3], i2),
        (np.int8([1, -127, 3]), {}, [1, -127, 3], np.int8),  # a byte has none
        (np.uint8([1, 255, 3]), {}, [1, 255, 3], np.uint8),
        (f8([0, 1, 2]), {"units": "days since 1970-01-01"}, [0, 1, 2], f8),  # times stay numbers
    ],
)  # fmt: skip
def test_values_of_stored_numbers(variables, stored, attributes, values, dtype):
    reader = variables(x=(stored, attributes))
    check(reader, "x", values, dtype)
    check(pickle.loads(pickle.dumps(reader)), "x", values, dtype)


def test_numbers_as_they_are_stored(variables):
    attributes = {"scale_factor": f4(0.5), "_FillValue": i2(2), "valid_max": i2(2)}
    check(variables(options={"mask_and_scale": False}, x=(i2([1, 2, 3]), attributes)), "x", [1, 2, 3], i2)


def test_default_fill_values_are_those_of_netcdf_files_alone(variables):
    check(variables(netcdf=False, x=(f4([1, DEFAULT_FLOAT, 3]), {})), "x", [1, DEFAULT_FLOAT, 3], f4)
    check(variables(netcdf=False, x=(f4([1, -9, 3]), {"_FillValue": f4(-9)})), "x", [1, NAN, 3], f4)


def test_a_variable_that_is_never_filled_has_no_default(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["_NCProperties"] = "version=2"
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((2,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_FLOAT, space, settings)
        file["x"][...] = [1, DEFAULT_FLOAT]
    check(read(tmp_path / "a.h5"), "x", [1, DEFAULT_FLOAT], f4)


@pytest.mark.parametrize("attributes", [{"_FillValue": i2(-9)}, {"missing_value": -9.0}, {"valid_min": i2(0)}])
def test_a_missing_integer_is_an_error_that_counts_them(variables, attributes):
    reader = variables(x=(i2([1, 2, -9, 4, -9]), attributes))
    assert reader.read(np.array([0, 3]))["x"].tolist() == [1, 4]
    with pytest.raises(DataError, match=r"sample 2 of .*'x' must have a value, as int16 .* 2 of 5 .* at index 2"):
        reader.read(np.arange(5))


def test_factors_differ_from_file_to_file(tmp_path):
    for number, factor in enumerate((0.5, 0.25)):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = i2([1, 2])
            file["x"].attrs["scale_factor"] = factor
    check(read(str(tmp_path / "*.h5")), "x", [0.5, 1, 0.25, 0.5], f8)


def test_arrays_of_different_lengths_and_chunks(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        ragged = file.create_dataset("r", (3,), h5py.vlen_dtype(i2))
        for row in range(3):
            ragged[row] = i2([-9, row])[: row + 1]
        ragged.attrs.update({"scale_factor": f4(0.5), "_FillValue": i2(-9)})
        chunked = file.create_dataset("c", data=i2([[1, -9], [-9, 2], [3, 4]]), chunks=(2, 1), compression="gzip")
        chunked.attrs.update({"scale_factor": f4(0.5), "_FillValue": i2(-9)})
    found = read(tmp_path / "a.h5").read(np.arange(3))
    np.testing.assert_array_equal(found["r"], f4([[NAN, 0], [NAN, 0.5], [NAN, 1]]))
    assert found["r_length"].tolist() == [1, 2, 2]
    np.testing.assert_array_equal(found["c"], f4([[0.5, NAN], [NAN, 1], [1.5, 2]]))


def test_the_names_of_an_enumeration_are_kept(variables, tmp_path):
    kind = h5py.enum_dtype({"cat": 0, "dog": 1, "none": 9}, "i1")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("y", data=np.array([1, 0, 9], "i1"), dtype=kind).attrs["_FillValue"] = np.int8(9)
    reader = read(tmp_path / "b.h5", target="y", classes=["cat", "dog"])
    assert reader.read(np.array([0, 1]))["y"].tolist() == [1, 0]
    with pytest.raises(DataError, match="'y' must have a value"):
        reader.read(np.array([2]))


@pytest.mark.parametrize(
    ("attributes", "what"),
    [
        ({"scale_factor": NAN}, "'scale_factor' must be a finite number other than 0, got nan"),
        ({"scale_factor": 0.0}, "'scale_factor' must be a finite number other than 0, got 0.0"),
        ({"scale_factor": [1.0, 2.0]}, "'scale_factor' must be a finite number other than 0, got 2 numbers"),
        ({"add_offset": math.inf}, "'add_offset' must be a finite number, got inf"),
        ({"scale_factor": "K"}, "'scale_factor' must be a number, got 'K'"),
    ],
)
def test_a_factor_that_is_none_is_an_error_that_names_it(variables, attributes, what):
    with pytest.raises(DataError, match=re.escape(f"'x': the attribute {what}")):
        variables(x=(i2([1, 2]), attributes), y=(i2([1, 2]), {}))  # and is not left out, which a run would not see
    assert variables(options={"mask_and_scale": False}, x=(i2([1, 2]), attributes)).fields["x"].dtype == i2


def test_an_attribute_that_is_no_number_is_named_in_a_warning(variables):
    with pytest.warns(UserWarning, match="'x': the attribute 'missing_value' must be a number, got 'none'; it is not"):
        check(variables(x=(f4([1, 2]), {"missing_value": "none"})), "x", [1, 2], f4)
    check(variables(x=(f4([1, 2]), {"missing_value": h5py.Empty("f")})), "x", [1, 2], f4)


@pytest.mark.parametrize("seed", range(40))
def test_scipy_reads_the_same_values(variables, seed):
    """Of variables in netCDF's older form, masked and scaled by scipy."""
    draw = np.random.default_rng(seed)
    stored = draw.integers(-5, 5, size=(20, 3)).astype(draw.choice(["i1", "i2", "i4", "f4", "f8"]))
    attributes = {"scale_factor": draw.choice([0.5, 0.01, 3.0]).astype(draw.choice(["f4", "f8"]))}
    if draw.random() < 0.7:
        attributes["add_offset"] = draw.choice([1.5, 273.15]).astype(draw.choice(["f4", "f8"]))
    if draw.random() < 0.7:
        attributes[draw.choice(["_FillValue", "missing_value"])] = stored.dtype.type(draw.integers(-5, 5))
    written = io.BytesIO()
    with netcdf_file(written, "w") as file:
        file.createDimension("n", 20)
        file.createDimension("m", 3)
        variable = file.createVariable("x", stored.dtype, ("n", "m"))
        variable[:] = stored
        for name, value in attributes.items():
            setattr(variable, name, value)
        file.flush()
        content = written.getvalue()
    with netcdf_file(io.BytesIO(content), maskandscale=True) as file:
        expected = np.ma.masked_array(file.variables["x"][:], dtype=np.float64).filled(NAN)
    found = variables(x=(stored, attributes)).read(np.arange(20))["x"]
    np.testing.assert_allclose(found, expected, rtol=1e-6, equal_nan=True)


# ---- rows of data sets that h5py wrote, of each way in which it stores them

X = np.random.default_rng(0).integers(0, 1000, (50, 3, 4)).astype(np.int32)
WAYS = {
    "contiguous": {},
    "chunks": {"chunks": (7, 3, 2)},
    "one row a chunk": {"chunks": (1, 3, 4)},
    "gzip": {"chunks": (8, 3, 4), "compression": "gzip", "shuffle": True},
    "one chunk": {"chunks": (50, 3, 4), "compression": "lzf"},
}


@pytest.mark.parametrize("dtype", [np.int32, ">f8", bool])
@pytest.mark.parametrize("way", WAYS)
def test_rows(tmp_path, way, dtype):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("group/x", data=X.astype(dtype), **WAYS[way])
    rows = StoredRows()
    with h5py.File(tmp_path / "a.h5") as file:
        for some in ([0], [49], [3, 4, 20, 48], range(50), [], [7, 8]):
            ids = np.array(some, np.int64)
            found = rows.read(tmp_path / "a.h5", file["group/x"], ids)
            np.testing.assert_array_equal(found, X.astype(dtype)[ids])
        copy = pickle.loads(pickle.dumps(rows))
        np.testing.assert_array_equal(copy.read(tmp_path / "a.h5", file["group/x"], ids), X.astype(dtype)[ids])


def test_a_chunk_is_decoded_once_whatever_fits_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5_blocks, "HELD_BYTES", 2 * 8 * 48)  # of seven chunks two
    decoded = []

    class Counting:
        def __init__(self, stored):
            self.stored = stored

        def __getattr__(self, name):
            return getattr(self.stored, name)

        def __getitem__(self, at):
            decoded.append(at.start)
            return self.stored[at]

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=X, **WAYS["gzip"])
    rows = StoredRows()
    with h5py.File(tmp_path / "a.h5") as file:
        for _ in range(4):
            np.testing.assert_array_equal(rows.read(tmp_path / "a.h5", Counting(file["x"]), np.arange(50)), X)
    assert decoded == [0, 8, 16, 24, 32, 40, 48]


def test_what_was_never_written(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (5, 2), np.float32, fillvalue=3)
    with h5py.File(tmp_path / "a.h5") as file:
        assert (StoredRows().read(tmp_path / "a.h5", file["x"], np.array([1, 4])) == 3).all()
