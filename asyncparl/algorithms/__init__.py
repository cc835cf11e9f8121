"""Reinforcement learning as pure torch: no environments, no processes, no configuration objects."""

from asyncparl.algorithms.a2c import A2C as A2C
from asyncparl.algorithms.actor_critic import ActorCritic as ActorCritic
from asyncparl.algorithms.actor_critic import Precision as Precision
from asyncparl.algorithms.base import Algorithm as Algorithm
from asyncparl.algorithms.ga3c import GA3C as GA3C
from asyncparl.algorithms.impala import IMPALA as IMPALA
from asyncparl.algorithms.optimizers import OptimizerName as OptimizerName
from asyncparl.algorithms.ppo import PPO as PPO
from asyncparl.algorithms.rollout import Rollout as Rollout
from asyncparl.algorithms.rollout import check_rollout as check_rollout
from asyncparl.algorithms.rollout import num_agent_steps as num_agent_steps
from asyncparl.algorithms.rollout import to_torch as to_torch
from asyncparl.algorithms.schedule import LinearDecay as LinearDecay
from asyncparl.algorithms.together import Together as Together
from asyncparl.algorithms.vtrace import VTraceReturns as VTraceReturns
from asyncparl.algorithms.vtrace import vtrace as vtrace
from asyncparl.algorithms.weights import WeightLayout as WeightLayout
