"""What is known about libraries: which of their functions have no effects, by name.

Whatever is not listed here is unknown. A function is listed under the module it is found in.
"""

from __future__ import annotations

import re

from hasten.loader.proof.source import is_user_class
from hasten.loader.proof.word_list import words

_ALL = "*"
_NUMPY_WRITES = (
    "save savez savez_compressed savetxt put place copyto putmask fill_diagonal put_along_axis "
    "seterr seterrcall setbufsize set_* memmap random test show_* info add_newdoc lookfor"
)
_TORCH_WRITES = (
    "save set_* use_* from_dlpack manual_seed seed compile jit cuda distributed backends autograd "
    "hub multiprocessing *_ init utils get_* initial_seed from_file ops is_grad_enabled "
    "is_inference_mode_enabled is_autocast* is_anomaly* are_* library _* overrides package onnx "
    "export quantization profiler random *batch_norm* instance_norm embedding_bag"
)
_OPERATORS = (
    "lt le eq ne ge gt not_ truth is_ is_not abs add and_ floordiv index inv invert lshift mod mul "
    "matmul neg or_ pos pow rshift sub truediv xor concat contains countOf getitem indexOf "
    "length_hint itemgetter attrgetter"
)
CV2_TARGETS = {
    "resize": 2, "cvtColor": 2, "flip": 2, "rotate": 2, "warpAffine": 3, "warpPerspective": 3,
    "blur": 2, "medianBlur": 2, "GaussianBlur": 3, "bilateralFilter": 4, "equalizeHist": 1,
    "threshold": 4, "split": 1, "merge": 1, "addWeighted": 5, "transpose": 1, "Canny": 3,
    "Sobel": 4, "Laplacian": 2, "dilate": 2, "erode": 2, "remap": 4, "copyMakeBorder": 6,
    "LUT": 2, "absdiff": 2, "add": 2, "subtract": 2, "multiply": 2, "divide": 2,
    "bitwise_and": 2, "bitwise_or": 2, "bitwise_xor": 2, "bitwise_not": 1, "normalize": 1,
    "convertScaleAbs": 1, "filter2D": 3, "boxFilter": 3, "pyrDown": 1, "pyrUp": 1,
    "morphologyEx": 3, "inRange": 3, "adaptiveThreshold": 6, "hconcat": 1, "vconcat": 1,
    "distanceTransform": 3, "applyColorMap": 2,
}  # fmt: skip
"""Functions of OpenCV, with the position of the array that each writes into, if given one."""
# Module, or a prefix with `.*`: names without effects (`*`: all), and exceptions that have some.
_PURE: dict[str, tuple[str, str]] = {
    "math": (_ALL, ""),
    "time": ("sleep", ""),
    "operator": (_OPERATORS, ""),
    "itertools": (_ALL, ""),
    "functools": ("reduce partial", ""),
    "string": (_ALL, ""),
    "re": ("compile match search fullmatch sub subn split findall finditer escape", ""),
    "json": ("load loads dumps", ""),
    "ast": ("literal_eval", ""),
    "csv": ("reader DictReader", ""),
    "pickle": ("dumps", ""),
    "os.path": (_ALL, "get*time expandvars expanduser"),
    "posixpath": (_ALL, "get*time expandvars expanduser"),
    "os": ("fspath fsdecode fsencode listdir scandir", ""),
    "posix": ("fspath listdir scandir", ""),
    "glob": ("glob iglob escape", ""),
    "copy": ("copy deepcopy", ""),
    "datetime": ("datetime date time timedelta strptime fromisoformat combine timezone", ""),
    "array": ("array", ""),
    "io": ("BytesIO StringIO TextIOWrapper BufferedReader", ""),
    "gzip": ("decompress", ""),
    "bz2": ("decompress", ""),
    "zlib": ("decompress crc32 adler32", ""),
    "base64": (_ALL, ""),
    "binascii": (_ALL, ""),
    "struct": ("unpack unpack_from pack calcsize", ""),
    "hashlib": ("md5 sha1 sha224 sha256 sha384 sha512 blake2b blake2s openssl_* new", ""),
    "collections": (_ALL, ""),
    "bisect": ("bisect bisect_left bisect_right", ""),
    "unicodedata": (_ALL, ""),
    "html": (_ALL, ""),
    "typing": ("cast", ""),
    "contextlib": ("suppress nullcontext", ""),
    "pathlib": ("Path PosixPath PurePath PurePosixPath", ""),
    "xml.etree.ElementTree": ("parse fromstring XML tostring", ""),
    "numpy": (_ALL, _NUMPY_WRITES),
    "numpy.linalg": (_ALL, ""),
    "numpy.fft": (_ALL, ""),
    "numpy.ma": (_ALL, ""),
    "numpy.lib.*": ("pad sliding_window_view as_strided load", ""),
    "numpy.char": (_ALL, ""),
    "numpy.strings": (_ALL, ""),
    "numpy.random": ("default_rng RandomState", ""),
    "h5py.*": ("File", ""),
    "nibabel.*": ("load", ""),
    "pydicom.*": ("dcmread read_file", ""),
    "librosa.*": ("load resample stft istft amplitude_to_db power_to_db melspectrogram mfcc "
                  "chroma_stft spectral_contrast tonnetz", ""),
    "rasterio": ("open", ""),
    "torch": (_ALL, _TORCH_WRITES),
    "torch._C": ("Size Generator device dtype", ""),
    "torch.serialization": ("load", ""),
    "torch.autograd.grad_mode": ("no_grad enable_grad inference_mode", ""),
    "torch._VF": (_ALL, "*_"),
    "torch.functional": (_ALL, "_*"),
    "torch._tensor": (_ALL, "_*"),
    "torch.nn.functional": (_ALL, "*_ _* *dropout* batch_norm instance_norm embedding*"),
    "torch._C._nn": (_ALL, "*_ _*"),
    "torch._C._linalg": (_ALL, ""),
    "torch._C._fft": (_ALL, ""),
    "torch.linalg": (_ALL, ""),
    "torch.fft": (_ALL, ""),
    "torch.nn.utils.rnn": ("pad_sequence pack_sequence pad_packed_sequence unpad_sequence", ""),
    "torch.utils.data": ("default_collate default_convert", ""),
    "torch.utils.data._utils.collate": ("default_collate default_convert", ""),
    "PIL.Image": ("open new fromarray frombuffer frombytes merge blend composite", ""),
    "PIL.ImageOps": (_ALL, ""),
    "PIL.ImageChops": (_ALL, ""),
    "PIL.ImageEnhance": (_ALL, ""),
    "PIL.ImageFilter": (_ALL, ""),
    "PIL.ImageDraw": ("Draw", ""),
    "transformers.data.data_collator": ("default_data_collator", ""),
    "torchvision.transforms.functional": (_ALL, "_* erase"),
    "torchvision.transforms.v2.functional": (_ALL, "_* *noise*"),
    "torchvision.transforms.v2.functional.*": (_ALL, "_* *noise*"),
    "torchvision.transforms._functional_*": (_ALL, "_*"),
    "torchvision.utils": ("_Image_fromarray make_grid", ""),
    "torchvision.datasets.folder": ("default_loader pil_loader", ""),
    "torchvision.io": ("read_image decode_image read_file decode_jpeg decode_png", ""),
    "torchvision.io.image": ("read_image decode_image read_file decode_jpeg decode_png", ""),
    "torchvision.tv_tensors": (_ALL, ""),
    "torchvision.tv_tensors.*": (_ALL, ""),
    "torchvision.ops.boxes": ("box_convert box_iou box_area clip_boxes_to_image", ""),
    "cv2": (" ".join(CV2_TARGETS) + " "
            "imread imdecode getRotationMatrix2D getAffineTransform "
            "getStructuringElement getPerspectiveTransform imencode boundingRect "
            "contourArea countNonZero getGaussianKernel", ""),
    "scipy.ndimage.*": (_ALL, "_*"),
    "scipy.ndimage": (_ALL, ""),
    "scipy.signal.*": (_ALL, "_*"),
    "scipy.signal": (_ALL, ""),
    "scipy.io": ("loadmat", ""),
    "scipy.io.wavfile": ("read", ""),
    "scipy.io.matlab.*": ("loadmat", ""),
    "skimage.*": ("imread resize rescale rotate rgb2gray gray2rgb rgb2lab rgb2hsv img_as_float "
                  "img_as_ubyte warp", ""),
    "imageio.*": ("imread", ""),
    "zipfile": ("ZipFile", ""),
    "tifffile.*": ("imread", ""),
    "soundfile": ("read", ""),
    "torchaudio": ("load", ""),
    "torchaudio.functional": (_ALL, "*dither* *noise* *mask*"),
    "torchaudio.functional.*": (_ALL, "*dither* *noise* *mask*"),
    "pandas": ("isna isnull notna notnull read_csv read_json read_pickle read_parquet to_numeric "
               "to_datetime concat Series DataFrame Timestamp", ""),
    "pandas.core.*": ("isna isnull notna notnull to_numeric to_datetime concat", ""),
    "pandas.io.*": ("read_csv read_json read_pickle read_parquet", ""),
}  # fmt: skip
_DRAWS: dict[str, str] = {
    "random": "random uniform randint choice choices sample randrange gauss normalvariate shuffle "
              "triangular betavariate expovariate gammavariate lognormvariate getrandbits seed",
    "numpy.random": "rand randn randint random random_sample uniform normal choice permutation "
                    "shuffle seed beta binomial poisson exponential standard_normal integers "
                    "laplace gamma lognormal multivariate_normal ranf sample random_integers "
                    "dirichlet multinomial",
    "torch": "rand randn randint randperm bernoulli normal multinomial poisson rand_like "
             "randn_like randint_like manual_seed binomial dropout feature_dropout alpha_dropout "
             "feature_alpha_dropout rrelu",
    "torch.random": "manual_seed",
    "torchvision.transforms.transforms": "get_params",
    "torch.nn.functional": "dropout dropout1d dropout2d dropout3d alpha_dropout "
                           "feature_alpha_dropout gumbel_softmax rrelu fractional_max_pool2d "
                           "fractional_max_pool3d scaled_dot_product_attention "
                           "multi_head_attention_forward",
}  # fmt: skip
ARRAYS = ("numpy", "torch", "cv2", "PIL", "math", "torchvision.transforms",
           "torchaudio.functional", "scipy.ndimage", "scipy.signal", "skimage", "librosa",
           "posixpath", "os.path")  # fmt: skip
"""Modules whose functions give numbers, texts, arrays or pictures."""
_COPYING = {
    "numpy", "torch", "cv2", "torch.functional", "torch.nn.functional", "torch.nn.utils.rnn",
}  # fmt: skip
"""In these modules, the results of the functions named below are not views of any argument."""
_COPIES = words(
    "array fromiter loadtxt genfromtxt fromstring linspace logspace "
    "identity tensor stack cat concatenate vstack hstack dstack copy clone zeros ones "
    "empty full arange eye zeros_like ones_like empty_like full_like one_hot resize "
    "imread cvtColor where pad_sequence column_stack tile repeat pad interpolate"
)
_FIGURES = words(
    "abs all any bin bool bytes chr complex divmod float format hash hex int isinstance "
    "issubclass len oct ord pow range repr round str hasattr callable"
)
NOT_FLAT = words(
    "load default_collate default_convert split array_split hsplit vsplit dsplit unstack "
    "broadcast_arrays broadcast_tensors meshgrid atleast_1d atleast_2d atleast_3d "
    "gradient findContours Draw errstate nditer ndenumerate ndindex vectorize frompyfunc "
    "apply_along_axis pack_sequence pad_packed_sequence unpad_sequence no_grad "
    "enable_grad inference_mode default_rng RandomState tolist rsplit splitlines findall "
    "iterdir glob rglob items keys values to_list to_dict elements most_common getcolors "
    "groupdict iterrows itertuples groupby get_group apply map Generator five_crop "
    "ten_crop merge_from getdata info exif text"
)
"""What makes lists and the like, which can hold anything."""
FIRST_IS_CALLED = words(
    "map filter reduce starmap takewhile dropwhile filterfalse partial apply applymap agg "
    "aggregate transform map_ apply_ vectorize frompyfunc apply_along_axis apply_over_axes "
    "fromfunction point eval defaultdict generic_filter geometric_transform vmap call pipe"
)
CALLED_BY_NAME = words(
    "key func function default object_hook object_pairs_hook parse_float parse_int "
    "converters date_parser default_factory repl post_process fn"
)
"""Arguments that a library calls."""


_BUILTINS = words(
    "abs all any bin bool bytearray bytes callable chr complex dict divmod enumerate "
    "filter float format frozenset getattr hasattr hex int isinstance issubclass "
    "iter len list map max min next oct ord pow range repr reversed round set slice "
    "sorted str sum tuple type zip object property super memoryview"
)
HOLDING = words(
    "list tuple dict set frozenset zip enumerate map filter reversed sorted partial chain islice "
    "product permutations combinations cycle repeat deque OrderedDict Counter defaultdict "
    "namedtuple takewhile dropwhile starmap groupby accumulate zip_longest itemgetter attrgetter"
)
"""Builtins and their like whose results hold the members of their arguments."""

PURE_METHODS = words(
    # of texts, bytes and numbers
    "capitalize casefold center count decode encode endswith expandtabs find format format_map "
    "index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isspace "
    "istitle isupper join ljust lower lstrip maketrans partition removeprefix removesuffix "
    "replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip "
    "swapcase title translate upper zfill hex bit_length to_bytes from_bytes as_integer_ratio "
    "conjugate is_integer "
    # of containers
    "get items keys values copy union intersection difference issubset issuperset isdisjoint "
    "most_common elements symmetric_difference "
    # of paths and patterns
    "open exists is_file is_dir joinpath with_suffix with_name with_stem relative_to as_posix "
    "match search fullmatch sub subn findall finditer group groups groupdict span start end glob "
    "rglob iterdir read_text read_bytes resolve absolute is_absolute "
    # of arrays and tensors
    "all any argmax argmin argsort astype choose clip compress conj cumprod cumsum diagonal dot "
    "flatten item mean nonzero prod ptp ravel reshape round searchsorted squeeze std sum swapaxes "
    "take tobytes tolist trace transpose var view max min abs add amax amin argwhere bmm bool byte "
    "ceil chunk clamp clone contiguous cos cpu detach diff dim div double element_size eq equal "
    "exp expand expand_as flip fliplr flipud float floor fmod gather ge gt half histc index_select "
    "int isfinite isinf isnan is_floating_point le log log10 log1p log2 logical_and logical_not "
    "logical_or long lt masked_fill masked_select matmul median mm movedim mul narrow ndimension "
    "ne neg new_empty new_full new_ones new_tensor new_zeros norm numel numpy permute pow prod "
    "quantile reciprocal relu remainder repeat repeat_interleave roll rot90 rsqrt scatter select "
    "short sigmoid sign sin size softmax sqrt square stack stride sub tan tanh tensor_split "
    "tile to topk tril triu true_divide type type_as unbind unfold unflatten unique unsqueeze "
    "where xor is_contiguous mv outer inner cross kron addmm addmv baddbmm logsumexp log_softmax "
    "erf expm1 asin acos atan atan2 sinh cosh trunc frac hypot count_nonzero cummax cummin "
    "clamp_min clamp_max nelement to float16 bfloat16 strftime isoformat date weekday "
    "isocalendar total_seconds timetuple timestamp toordinal rank corr abs between cumcount "
    "droplevel explode filter get_level_values idxmax idxmin join melt merge pivot rename round "
    "set_index shift stack swaplevel to_datetime unstack xs equals mode rolling ffill "
    "bfill interpolate tz_localize cat bitwise_and bitwise_or index_fill index_add index_copy "
    "fill_diagonal "
    # of pictures
    "convert crop getbands getbbox getchannel getcolors getdata getextrema getpixel histogram "
    "quantize reduce resize rotate transform transpose filter split point enhance "
    "entropy tobytes "
    # of tables
    "iterrows itertuples to_numpy to_dict to_list head tail isin isna isnull notna notnull "
    "fillna dropna drop assign groupby get_group reset_index sort_values iteritems nunique "
    "value_counts first last agg aggregate apply applymap map "
    # of files that were opened for the batch, of archives and of XML
    "iter findtext getroot getparent readable getvalue __len__ __getitem__ __contains__ __iter__ "
    "__next__ __enter__ __exit__ __float__ __int__ nnz toarray todense"
)
"""Methods that change nothing. Their result may be a view."""

COPYING_METHODS = words(
    "copy clone tolist item tobytes convert resize rotate sum mean std var max min prod "
    "argmax argmin argsort dot matmul mm bmm cumsum norm join format replace lower "
    "upper encode decode stack index_select masked_fill gather scatter "
    "new_tensor new_zeros new_ones new_full histogram getbbox getextrema entropy size "
    "numel nelement dim read_text read_bytes abs add sub mul div pow exp log sqrt clamp clip "
    "repeat tile roll crop count index find startswith endswith strip value_counts nunique "
    "describe"
)
WRITING_METHODS = words(
    "append extend insert remove pop popleft appendleft clear sort reverse update setdefault "
    "popitem add discard fill put itemset partition resize_ setflags setfield sort byteswap_ paste "
    "putpixel putdata thumbnail putalpha load seek read readline readlines readinto close draft "
    "verify tell write writelines line rectangle ellipse polygon text arc point send writerow "
    "move_to_end subtract extendleft requires_grad_ digest hexdigest loadtxt"
)
"""Methods that write into what they are called on, and nothing else."""

LISTING_METHODS = words(
    "tolist to_list to_dict split rsplit splitlines findall getcolors groupdict iterdir glob rglob"
)
"""Methods of strings, paths and arrays that make lists of them."""

_IN_PLACE = re.compile(r"[a-z0-9_]+[a-z0-9]_")
_SHARED = {"set_", "share_memory_", "swap_", "rename_", "set_data_", "detach_", "retain_grad_"}
DRAWN_IN_PLACE = {
    "normal_", "uniform_", "bernoulli_", "exponential_", "cauchy_", "geometric_", "log_normal_",
    "random_", "bernoulli", "multinomial",
}  # fmt: skip
_CONTAINERS = ("torch.nn.modules.container", "torch.nn.modules.linear")
TRANSFORMS = ("torchvision.transforms", "torchaudio.transforms")
ANALYSED = (
    "torchvision.datasets", "torch.utils.data.dataset", "torch.utils.data._utils.collate",
    "torchaudio.datasets",
)  # fmt: skip
"""Libraries whose own code is read like the user's."""


LOOKING = words("exists isfile isdir islink getsize is_file is_dir samefile lexists")
"""What queries files without opening them."""

OPENING = LOOKING | words(
    "open load loadtxt genfromtxt fromfile memmap imread read_image read_file read_csv read_json "
    "read_pickle read_parquet listdir scandir glob iglob rglob iterdir parse loadmat read_text "
    "read_bytes default_loader pil_loader ZipFile dcmread File"
)


def is_read(kind: type) -> bool:
    """Return whether a class's methods are read: the script's, or those of a library's dataset."""
    return is_user_class(kind) or (kind.__module__ or "").startswith(ANALYSED)


def _listed(name: str, listed: str) -> bool:
    for one in listed.split():
        if one in (name, _ALL):
            return True
        if "*" in one and re.fullmatch(one.replace("*", ".*"), name):
            return True
    return False


def is_pure(module: str, name: str) -> bool:
    """Return whether a function of a library is known to have no effects."""
    if module == "builtins":
        return name in _BUILTINS
    module = module.lstrip("_")  # "_csv" is the part of "csv" that is written in C
    for known, (pure, effects) in _PURE.items():
        begins = known.endswith("*") and module.startswith(known.rstrip("*").rstrip("."))
        if (known == module or begins) and _listed(name, pure) and not _listed(name, effects):
            return True
    return False


def draws(module: str, name: str) -> bool:
    """Return whether a function draws from a global random generator, and does nothing else."""
    if module in ("numpy.random.mtrand", "numpy.random._mtrand"):
        module = "numpy.random"
    if module.startswith("torch._C"):
        module = "torch"
    return name in _DRAWS.get(module, "").split()


def copies(module: str, name: str) -> bool:
    """Return whether the result of a pure function is never a view of its arguments."""
    return module in _COPYING and name in _COPIES


def is_figure(module: str, name: str) -> bool:
    """Return whether a function gives numbers or texts, whatever it is given."""
    return (module == "builtins" and name in _FIGURES) or module in ("posixpath", "ntpath")


def writes_itself(name: str) -> bool:
    """Return whether a method writes into what it is called on, and nothing else."""
    return name in WRITING_METHODS or (name not in _SHARED and bool(_IN_PLACE.fullmatch(name)))


def is_transform(kind: type) -> bool:
    """Return whether a class is a transform of torchvision, or a chain of torch's."""
    if kind.__module__.startswith(_CONTAINERS):
        return kind.__name__ in ("Sequential", "Identity")
    return kind.__module__.startswith((*TRANSFORMS, "torchvision.datasets.vision"))
