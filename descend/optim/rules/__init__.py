"""The update rules, one family in a file, and the table of them all.

`ALL_RULES` has one instance for each setting that changes a rule's arithmetic; tests of properties that every rule has
run over it. `RULES` maps the name of each of these rules, in lower case, to its class.
"""

from __future__ import annotations

from descend.optim.rules.adabelief import AdaBelief
from descend.optim.rules.adadelta import AdaDelta
from descend.optim.rules.adafactor import Adafactor
from descend.optim.rules.adagrad import AdaGrad, GroupAdaGrad
from descend.optim.rules.adam import Adam, AdamW
from descend.optim.rules.adamax import Adamax
from descend.optim.rules.adan import Adan
from descend.optim.rules.ademamix import AdEMAMix
from descend.optim.rules.adopt import ADOPT
from descend.optim.rules.base import Rule
from descend.optim.rules.dcasgd import DCASGD
from descend.optim.rules.ftml import FTML
from descend.optim.rules.ftrl import FTRL
from descend.optim.rules.hypergradient import HypergradientAdam
from descend.optim.rules.lamb import LAMB
from descend.optim.rules.lans import LANS
from descend.optim.rules.lars import LARS
from descend.optim.rules.lbsgd import LBSGD
from descend.optim.rules.lion import Lion
from descend.optim.rules.mars import MARS
from descend.optim.rules.muon import Muon
from descend.optim.rules.nadam import Nadam
from descend.optim.rules.rmsprop import RMSProp
from descend.optim.rules.rprop import Rprop
from descend.optim.rules.schedule_free import ScheduleFreeAdamW, ScheduleFreeSGD
from descend.optim.rules.sgd import NAG, SGD
from descend.optim.rules.sgld import SGLD
from descend.optim.rules.signum import SignSGD, Signum
from descend.optim.rules.soap import SOAP

__all__ = [
    "ADOPT",
    "ALL_RULES",
    "DCASGD",
    "FTML",
    "FTRL",
    "LAMB",
    "LANS",
    "LARS",
    "LBSGD",
    "MARS",
    "NAG",
    "RULES",
    "SGD",
    "SGLD",
    "SOAP",
    "AdEMAMix",
    "AdaBelief",
    "AdaDelta",
    "AdaGrad",
    "Adafactor",
    "Adam",
    "AdamW",
    "Adamax",
    "Adan",
    "GroupAdaGrad",
    "HypergradientAdam",
    "Lion",
    "Muon",
    "Nadam",
    "RMSProp",
    "Rprop",
    "Rule",
    "ScheduleFreeAdamW",
    "ScheduleFreeSGD",
    "SignSGD",
    "Signum",
]

ALL_RULES: tuple[Rule, ...] = (
    SGD(),
    SGD(momentum=0.9),
    SGD(momentum=0.9, dampening=0.3),
    SGD(momentum=0.9, nesterov=True),
    SGD(momentum=0.9, rate_inside=True),
    NAG(),
    NAG(rate_inside=False),
    AdaGrad(),
    AdaGrad(eps_inside=True, lr_decay=0.1, initial=0.1),
    AdaGrad(eps=0.0),
    GroupAdaGrad(),
    GroupAdaGrad(eps_inside=True),
    RMSProp(),
    RMSProp(eps_inside=True),
    RMSProp(momentum=0.9),
    RMSProp(centered=True, eps=1e-3),
    RMSProp(centered=True, momentum=0.9, eps=1e-3, eps_inside=True, rate_inside=True, clip_weights=2.0),
    AdaDelta(),
    Adam(),
    Adam(eps_at="inside"),
    Adam(eps_at="uncorrected"),
    Adam(bias_correction=False),
    Adam(amsgrad=True),
    Adam(eps=0.0),
    AdamW(),
    AdamW(decay_at="corrected", eps_at="uncorrected"),
    AdamW(decay_at="corrected after"),
    AdamW(skip_nonfinite=True),
    AdaBelief(eps=1e-8),
    AdaBelief(eps=1e-6, eps_at="uncorrected"),
    AdaBelief(eps=1e-8, bias_correction=False),
    AdEMAMix(),
    AdEMAMix(beta1=0.0, alpha_warmup=10, beta3_warmup=6, eps=0.0),
    ADOPT(),
    ADOPT(clip=False, decoupled=True),
    Adan(),
    Adan(proximal=False, eps=0.0),
    Adamax(),
    Adamax(eps=0.0),
    Adamax(eps_inside=True),
    Nadam(),
    HypergradientAdam(),
    HypergradientAdam(hyper_learning_rate=1e-3),
    SignSGD(),
    Signum(),
    Signum(wd_lh=0.1),
    Lion(),
    MARS(),
    MARS(gamma=0.1, amsgrad=True),
    MARS(base="lion"),
    LARS(),
    LARS(momentum=0.0),
    LARS(rate_inside=False, nesterov=True, dampening=0.2, ratio_of="sum"),
    LARS(eps=1e-8, momentum_correction=True, clip_inside=0.5),
    LBSGD(),
    LBSGD(momentum=0.9, batch_scale=3, warmup_epochs=2, updates_per_epoch=4, clip_inside=0.5),
    LBSGD(batch_scale=2, warmup_strategy="power2", updates_per_epoch=2),
    LBSGD(batch_scale=2, warmup_strategy="sqrt", updates_per_epoch=2, begin_epoch=1),
    LBSGD(momentum=0.9, warmup_strategy="lars", norm_scale=2.0),
    LAMB(),
    LAMB(bias_correction=False),
    LAMB(lower_bound=1.0, upper_bound=2.0),
    LANS(),
    LANS(sequential=True, clip_inside=0.1, lower_bound=1.0, upper_bound=2.0),
    DCASGD(),
    DCASGD(momentum=0.9, decay_in_square=False),
    FTRL(),
    FTML(),
    SGLD(),
    SGLD(temperature=0.0),
    Rprop(),
    Adafactor(),
    Adafactor(d=1.5, eps1=1e-8),
    Muon(),
    Muon(nesterov=False, adjust="match_rms_adamw"),
    SOAP(),
    SOAP(frequency=2),
    ScheduleFreeSGD(),
    ScheduleFreeAdamW(),
)

RULES: dict[str, type[Rule]] = {rule.__name__.lower(): rule for rule in map(type, ALL_RULES)}
