"""Speed and memory, measured: whole models with every stream, and single kernels."""

from depth_memory.bench.backbones import BACKBONES as BACKBONES
from depth_memory.bench.backbones import Backbone as Backbone
from depth_memory.bench.cases import MODES as MODES
from depth_memory.bench.cases import SCOPES as SCOPES
from depth_memory.bench.cases import Case as Case
from depth_memory.bench.cases import expand as expand
from depth_memory.bench.measure import Plan as Plan
from depth_memory.bench.methods import Method as Method
from depth_memory.bench.methods import parse_method as parse_method
from depth_memory.bench.model import measure_models as measure_models
from depth_memory.bench.ops import check_device as check_device
from depth_memory.bench.ops import check_sizes as check_sizes
from depth_memory.bench.ops import measure_ops as measure_ops
from depth_memory.bench.passes import Sizes as Sizes
from depth_memory.bench.results import Results as Results
