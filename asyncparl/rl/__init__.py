"""The three layers that users build on: `Model`, `Algorithm`, `Agent`; and ready models."""

from asyncparl.algorithms.base import Algorithm as Algorithm
from asyncparl.algorithms.weights import WeightLayout as WeightLayout
from asyncparl.rl.agent import Agent as Agent
from asyncparl.rl.default import default_model as default_model
from asyncparl.rl.memory import keep_freed_memory as keep_freed_memory
from asyncparl.rl.model import Model as Model
from asyncparl.rl.nets import MLP as MLP
from asyncparl.rl.nets import AtariDeep as AtariDeep
from asyncparl.rl.nets import AtariShallow as AtariShallow
from asyncparl.rl.recurrent import MLPLSTM as MLPLSTM
from asyncparl.rl.recurrent import AtariDeepLSTM as AtariDeepLSTM
from asyncparl.rl.recurrent import AtariShallowLSTM as AtariShallowLSTM
from asyncparl.rl.recurrent import LSTMModel as LSTMModel
