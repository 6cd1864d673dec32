"""Random settings of every optimizer and scheduler of the MXNet at hand, run and recorded.

    python mxnet_cases.py FOLDER SEED CASES        with the Python of MXNet 1.9.1 or of 2.0.0b1

Left undrawn is what descend.compat.known_deviations lists: it is a defect, or undefined.
"""

# ruff: noqa: B905, UP  # zip has no strict in Python 3.8
import sys
import tempfile

import mxnet as mx
import numpy as np
from folder import STEPS, Folder

OLD = mx.__version__.startswith("1.")
PREFIX = "mx191" if OLD else "mx20"
CPUS = [mx.cpu(0), mx.cpu(1)]
STATES = tempfile.mkdtemp() + "/states"
for_gluon = mx.nd.array if OLD else mx.np.array

# (rtol, atol) of a rule's recorded trajectories; kernels round 1 - beta2 to float32.
TIGHT, ROUGH, NORMS = (5e-6, 2e-6), (2e-4, 5e-5), (2e-3, 2e-4)
TOLERANCE = {"adam": ROUGH, "adamw": ROUGH, "adabelief": ROUGH, "ftml": (2e-5, 2e-6)}
HALF = {"lars": NORMS, "lamb": NORMS, "lans": NORMS}

KERNELS, PLAIN_ONLY = (
    ("sgd", "nag", "signum", "adam", "ftml", "lars"),
    ("adadelta", "adamax", "nadam", "dcasgd", "sgld"),
)


def own_arguments(f, name):
    """Arguments that an optimizer has beside the common ones."""
    betas = {"beta1": lambda: f.log(0.3, 0.97), "beta2": lambda: f.log(0.6, 0.9999)}
    eps = {("eps" if OLD and name in ("adagrad", "lars", "groupadagrad") else "epsilon"): lambda: f.log(1e-8, 1e-2)}
    bounds = {"lower_bound": lambda: f.log(0.3, 1.6), "upper_bound": lambda: f.log(1.7, 4.0)}
    draws = {
        "sgd": {"momentum": lambda: f.pick([0.0, 0.5, 0.9]), "lazy_update": lambda: f.chance(0.5)},
        "nag": {"momentum": lambda: f.pick([0.0, 0.5, 0.9])},
        "signum": {"momentum": lambda: f.pick([0.0, 0.5, 0.9]), "wd_lh": lambda: f.log(0.01, 0.3)},
        "adagrad": eps,
        "rmsprop": {
            "epsilon": lambda: f.log(1e-3, 1e-1),
            "centered": lambda: True,
            "clip_weights": lambda: f.pick([0.5, 0.8, 0.0, -1.0]),
            ("gamma1" if OLD else "rho"): lambda: f.log(0.5, 0.97),
            ("gamma2" if OLD else "momentum"): lambda: f.pick([0.0, 0.5, 0.9]),
        },
        "adadelta": {"rho": lambda: f.log(0.5, 0.97), **eps},
        "adam": {"lazy_update": lambda: f.chance(0.5), **betas, **eps},
        "adamw": {"correct_bias": lambda: f.chance(0.5), **betas, **eps},
        "adabelief": {"correct_bias": lambda: f.chance(0.5), **betas, **eps},
        "adamax": betas if OLD else {**betas, **eps},
        "nadam": {"schedule_decay": lambda: f.log(1e-3, 1.0), **betas, **eps},
        "lars": {"momentum": lambda: f.pick([0.0, 0.5, 0.9]), "eta": lambda: f.log(1e-3, 0.2), **eps},
        "lbsgd": {
            "momentum": lambda: f.pick([0.0, 0.5, 0.9]),
            "warmup_strategy": lambda: f.pick(["linear", "power2", "sqrt", "lars", "jump"]),
            "warmup_epochs": lambda: f.pick([0, 1, 2, 5]),
            "batch_scale": lambda: f.pick([1, 2, 3, 5]),
            "updates_per_epoch": lambda: f.pick([1, 3, 6]),
            "begin_epoch": lambda: f.pick([0, 1, 2]),
        },
        "lamb": {"bias_correction": lambda: f.chance(0.5), **betas, **eps, **bounds},
        "lans": {**betas, **eps, **bounds},
        "dcasgd": {"lamda": lambda: f.log(0.01, 1.0), **({} if OLD else {"momentum": lambda: f.pick([0.0, 0.5, 0.9])})},
        "ftrl": {"lamda1": lambda: f.log(1e-3, 0.5), "beta": lambda: f.log(0.2, 2.0)},
        "ftml": {**betas, **eps},
        "sgld": {},
        "groupadagrad": eps,
    }[name]
    given = f.maybe(0.55, **draws)
    if OLD and name == "lars":
        given["momentum_correction"] = f.chance(0.5)
    if OLD and name == "signum" and given.get("momentum") == 0.0:
        given.pop("wd_lh", None)  # raises
    if name == "rmsprop" and given.get("centered"):
        given.setdefault("epsilon", 1e-2)  # n - a² cancels
    return given


def scheduler(f):
    """A scheduler's class name and arguments."""
    kind = f.pick(["FactorScheduler", "MultiFactorScheduler", "PolyScheduler", "CosineScheduler"])
    base = f.log(0.01, 0.2)
    given = {"base_lr": base}
    if f.chance(0.5):
        given.update(warmup_steps=int(f.pick([1, 3, 6])), warmup_mode=f.pick(["linear", "constant"]))
        given["warmup_begin_lr"] = float(np.float32(base * f.pick([0.0, 0.1, 1.0])))
    if kind == "FactorScheduler":
        given.update(step=int(f.pick([1, 2, 5])), factor=f.pick([0.3, 0.5, 0.9, 1.0]))
        given.update(f.maybe(0.4, stop_factor_lr=lambda: f.log(1e-4, 0.05)))
    elif kind == "MultiFactorScheduler":
        given.update(step=f.pick([[3, 8, 15], [1], [2, 3, 4], [10, 25]]), factor=f.pick([0.1, 0.5, 1.0]))
    else:
        given.update(max_update=int(f.pick([8, 15, 30])), final_lr=float(np.float32(base * f.pick([0.0, 0.1, 0.7]))))
        if kind == "PolyScheduler":
            given.update(f.maybe(0.6, pwr=lambda: int(f.pick([1, 2, 3]))))
    return {"type": kind, "kwargs": given}


RATES = {
    "sgd": (0.01, 0.2), "nag": (0.01, 0.2), "signum": (0.002, 0.05), "lars": (0.1, 2.0), "lbsgd": (0.005, 0.05),
    "adagrad": (0.02, 0.3), "groupadagrad": (0.02, 0.3), "adadelta": (0.3, 2.0), "dcasgd": (0.01, 0.1),
    "ftrl": (0.05, 0.5), "sgld": (0.01, 0.2),
}  # fmt: skip


def common_arguments(f, name, dtype):
    """Arguments of the base class."""
    given = f.maybe(
        0.4,
        wd=lambda: f.log(1e-3, 0.3),
        rescale_grad=lambda: f.pick([0.125, 0.5, 2.0]),
        clip_gradient=lambda: f.pick([0.05, 0.3, 1.0, 3.0]),
    )
    if f.chance(0.05) and name in (*KERNELS, "lamb", "rmsprop", "ftrl"):
        given["clip_gradient"] = f.pick([0, -1.0])
    if f.chance(0.85):
        given["learning_rate"] = f.log(*RATES.get(name, (0.005, 0.05)))
    if name == "groupadagrad" or (name == "nag" and OLD):
        given.pop("wd", None)
    if name != "lbsgd" and f.chance(0.1):
        given["begin_num_update"] = int(f.pick([1, 5, 12]))
    if dtype == "float16":
        given["multi_precision"] = True
        given.pop("rescale_grad", None)
    if not OLD:
        given.update(f.maybe(0.15, use_fused_step=lambda: False, aggregate_num=lambda: int(f.pick([2, 4, 10]))))
        if name in PLAIN_ONLY:
            given.pop("use_fused_step", None)
        if name not in ("sgd", "lars", "adamw", "adabelief", "lamb", "lans"):
            given.pop("aggregate_num", None)
        if given.get("use_fused_step") is False and given.get("clip_gradient", 1.0) < 0:
            given.pop("clip_gradient")
    return given


def shapes_of(f, name):
    """Shapes of the tensors of a case."""
    if name == "groupadagrad":
        return [f.pick([(5, 3), (1, 4), (6, 1)]) for _ in range(f.pick([1, 2]))]
    number = 1 if name == "nadam" else f.pick([1, 2, 3, 6])
    return [f.pick([(7,), (1,), (5, 3), (4, 2, 3, 3), (2, 2, 3), (1, 6), (130,)]) for _ in range(number)]


class Recorder:
    """One optimizer over fresh weights."""

    def __init__(self, f, case):
        self.case, arrays = case, f.arrays
        dtype = case["dtype"]
        self.w = [mx.nd.array(arrays[k], dtype=dtype) for k in case["arrays"]["w0"]]
        self.g = [arrays[k] for k in case["arrays"]["grads"]]
        self.optimizer = self.make()
        self.updater = mx.optimizer.get_updater(self.optimizer)

    def make(self):
        """A fresh optimizer object."""
        case, given = self.case, dict(self.case["kwargs"])
        if "lr_scheduler" in case:
            schedule = case["lr_scheduler"]
            given["lr_scheduler"] = getattr(mx.lr_scheduler, schedule["type"])(**schedule["kwargs"])
        if "names" in case:
            given["param_idx2name"] = dict(enumerate(case["names"]))
        made = mx.optimizer.create(case["optimizer"], **given)
        if "lr_mult" in case:
            made.set_lr_mult(dict(enumerate(case["lr_mult"])))
        if "wd_mult" in case:
            made.set_wd_mult(dict(enumerate(case["wd_mult"])))
        return made

    def step(self, t):
        """One update of every tensor, one after the other or in one call."""
        if t == self.case.get("save_load_at"):
            held = self.updater.get_states(dump_optimizer=True)
            self.updater = mx.optimizer.get_updater(self.make())
            self.updater.set_states(held)
            self.optimizer = self.updater.optimizer
        if str(t) in self.case.get("set_lr", {}):
            self.optimizer.set_learning_rate(self.case["set_lr"][str(t)])
        fresh = [mx.nd.array(g[t], dtype=w.dtype) for g, w in zip(self.g, self.w)]
        if self.optimizer.aggregate_num > 1:
            self.updater(list(range(len(self.w))), fresh, self.w)
        else:
            for i, (g, w) in enumerate(zip(fresh, self.w)):
                self.updater(i, g, w)

    def weights(self):
        """The weights now, float16 ones as float32."""
        return [w.asnumpy().astype(np.float64 if self.case["dtype"] == "float64" else np.float32) for w in self.w]

    def masters(self):
        """The float32 copies."""
        first = not (OLD and self.case["optimizer"] in ("sgd", "nag", "lars"))
        return [self.updater.states[i][0 if first else 1].asnumpy() for i in range(len(self.w))]

    def rate(self):
        """The rate shown."""
        return self.optimizer.learning_rate


class Trained(Recorder):
    """The same through gluon.Trainer, where gradients come from backward."""

    def __init__(self, f, case):
        self.case = case
        self.g = [f.arrays[k] for k in case["arrays"]["grads"]]
        self.cpus = CPUS if case.get("replicas") else CPUS[:1]
        self.params = []
        for i, key in enumerate(case["arrays"]["w0"]):
            p = mx.gluon.Parameter(f"p{i}", shape=f.arrays[key].shape)
            p.initialize(ctx=self.cpus)
            p.set_data(for_gluon(f.arrays[key]))
            p.lr_mult, p.wd_mult = (case.get(k, [1.0] * 9)[i] for k in ("lr_mult", "wd_mult"))
            self.params.append(p)
        self.trainer = self.make()

    def make(self):
        """A fresh trainer over the same parameters."""
        case, given = self.case, dict(self.case["kwargs"])
        if "lr_scheduler" in case:
            schedule = case["lr_scheduler"]
            given["lr_scheduler"] = getattr(mx.lr_scheduler, schedule["type"])(**schedule["kwargs"])
        more = {key: case[key] for key in ("compression_params", "update_on_kvstore") if key in case}
        return mx.gluon.Trainer(self.params, case["optimizer"], given, **more)

    def step(self, t):
        """Backward, then the trainer's step."""
        if t == self.case.get("save_load_at"):
            self.trainer.save_states(STATES)
            self.trainer = self.make()
            self.trainer.load_states(STATES)
        if str(t) in self.case.get("set_lr", {}):
            self.trainer.set_learning_rate(self.case["set_lr"][str(t)])
        with mx.autograd.record():
            losses = [
                sum(
                    (p.data(cpu) * for_gluon(g[k][t] if self.case.get("replicas") else g[t], ctx=cpu)).sum()
                    for p, g in zip(self.params, self.g)
                )
                for k, cpu in enumerate(self.cpus)
            ]
        mx.autograd.backward(losses)
        self.trainer.step(self.case["batch_size"])

    def weights(self):
        """The weights now."""
        return [p.data(CPUS[0]).asnumpy() for p in self.params]

    def rate(self):
        """The rate shown."""
        return self.trainer.learning_rate


def draw(f, name, number):
    """One case, recorded."""
    doubles = (*KERNELS[:4], "ftml")
    half = name != "sgld"
    dtype = "float64" if name in doubles and f.chance(0.12) else "float16" if half and f.chance(0.15) else "float32"
    case = {
        "id": f"{PREFIX}/{name}/{number}",
        "optimizer": name,
        "source": "mxnet",
        "source_version": mx.__version__,
        "api": "updater",
        "dtype": dtype,
        "kwargs": {**common_arguments(f, name, dtype), **own_arguments(f, name)},
    }
    tol = HALF.get(name) if dtype == "float16" else None
    tol = tol or TOLERANCE.get(name, TIGHT)
    case["tol"] = {"rtol": tol[0], "atol": tol[1]}
    if not OLD and (case["kwargs"].get("use_fused_step") is False or dtype == "float16"):  # 2.0 refuses the two at once
        case["kwargs"].pop("lazy_update", None)
    if case["kwargs"].get("use_fused_step") is False and (case["kwargs"].get("clip_weights") or 0.0) < 0:
        case["kwargs"].pop("clip_weights")  # undefined, as a negative clip_gradient is there
    shapes = shapes_of(f, name)
    adorn(f, case, len(shapes))
    stream = f"s{number}"
    zero_step = name != "lans"
    case["stream"] = stream
    replicas = 2 if case.get("replicas") else 1
    case["arrays"] = f.stream(stream, shapes, dtype, replicas, zero_step, f.chance(0.15), f.chance(0.3))
    record(f, case)


def adorn(f, case, tensors):
    """Multipliers, names, schedules, gluon's form, saving."""
    name, given = case["optimizer"], case["kwargs"]
    if f.chance(0.2):
        case["lr_mult"] = [
            f.pick([0.1, 1.0, 2.0] if name in ("ftrl", "ftml") else [0.0, 0.1, 1.0, 2.0]) for _ in range(tensors)
        ]
    if f.chance(0.2):
        case["wd_mult"] = [f.pick([0.0, 1.0, 5.0]) for _ in range(tensors)]
    if f.chance(0.2):
        words = ["fc_weight", "fc_bias", "bn_gamma", "bn_beta", "odd", "w_weight_v"]
        case["names"] = [words[(i + f.random.randint(6)) % 6] for i in range(tensors)]
        if len(set(case["names"])) < tensors:
            del case["names"]
    corrected = OLD and name == "lars" and given.get("momentum", 0.0) and given["momentum_correction"]
    steady = (OLD and name == "lbsgd") or (corrected and tensors > 4)  # not_copied
    steady = steady or (OLD and name == "adadelta")  # it reads no rate
    if not steady and f.chance(0.3):
        case["lr_scheduler"] = scheduler(f)
        if f.chance(0.5):
            given.pop("learning_rate", None)
    if "lr_scheduler" not in case and not steady and f.chance(0.15):
        case["set_lr"] = {"5": f.log(0.005, 0.05), "13": f.log(0.005, 0.05)}
    if f.chance(0.12):
        case["save_load_at"] = int(f.pick([1, 7, 12]))
    if case["dtype"] == "float32" and f.chance(0.25) and not (OLD and name == "lbsgd"):
        case.update(api="trainer", batch_size=int(f.pick([1, 2, 8])))
        case.pop("names", None)
        if name != "nadam" and f.chance(0.4) and "begin_num_update" not in given:
            case["replicas"] = 2
            case.update(f.maybe(0.5, update_on_kvstore=lambda: False))
            if name in ("sgd", "nag", "signum", "adam") and f.chance(0.4):
                case.update(update_on_kvstore=False, compression_params={"type": "2bit", "threshold": 0.5})
        if given.get("aggregate_num", 1) > 1 or name in ("lamb", "lans", "adamw", "adabelief"):
            case.pop("update_on_kvstore", None)
        if corrected:
            for key in ("lr_scheduler", "set_lr"):
                case.pop(key, None)
            given.setdefault("learning_rate", 0.5)


def record(f, case):
    """Run a case and keep what it gave."""
    if case["optimizer"] == "sgld":
        case["note"] = "the random draws are replaced by zeros: only the deterministic part of the update"
    run = (Trained if case["api"] == "trainer" else Recorder)(f, case)
    w, master, rates = [], [], []
    for t in range(STEPS):
        try:
            run.step(t)
        except ZeroDivisionError:  # FTRL and FTML at a rate of 0
            return
        w.append(run.weights())
        rates.append(run.rate())
        if case["dtype"] == "float16":
            master.append(run.masters())
    case.pop("replicas", None)
    f.case(
        case,
        w=list(zip(*w)),
        master=list(zip(*master)) if master else None,
        lr=rates if "lr_scheduler" in case else None,
    )


def schedules(f, number):
    """Schedulers asked for 41 updates in order, attached to an optimizer or not."""
    for i in range(number):
        drawn = scheduler(f)
        case = {"id": f"{PREFIX}/lr/{i}", "source": "mxnet", "source_version": mx.__version__}
        made = getattr(mx.lr_scheduler, drawn["type"])(**drawn["kwargs"])
        case["lr_scheduler"] = drawn
        if f.chance(0.3):
            case["optimizer_learning_rate"] = f.log(0.05, 1.0)
            mx.optimizer.create("sgd", learning_rate=case["optimizer_learning_rate"], lr_scheduler=made)
        keys = {"num_update": f"lr/{i}/n", "lr_sequence": f"lr/{i}/s"}
        f.arrays[keys["num_update"]] = np.arange(41)
        f.arrays[keys["lr_sequence"]] = np.array([made(n) for n in range(41)], np.float64)
        case["arrays"] = keys
        f.schedules.append(case)


NAMES = [
    "sgd", "nag", "signum", "adagrad", "rmsprop", "adadelta", "adam", "adamax", "nadam", "lars", "lamb", "dcasgd",
    "ftrl", "ftml", "sgld", "groupadagrad",
] + (["lbsgd"] if OLD else ["adamw", "adabelief", "lans"])  # fmt: skip


def silence_noise():
    """SGLD without its noise, which is random."""
    module = mx.optimizer.optimizer if OLD else sys.modules["mxnet.optimizer.sgld"]
    module.normal = lambda loc, scale, shape, dtype, ctx: mx.nd.zeros(shape, dtype=dtype, ctx=ctx)


def main(path, seed, number):
    """Write a folder."""
    f = Folder(int(seed))
    silence_noise()
    for i in range(int(number)):
        draw(f, NAMES[i % len(NAMES)], i)
    schedules(f, max(10, int(number) // 4))
    f.write(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
