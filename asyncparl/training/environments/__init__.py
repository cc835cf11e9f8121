"""Environments for actors: `make_environment` gives N copies of one game behind one small interface.

Importing this package registers `asyncparl/Catch-v0`, `asyncparl/Counter-v0` and `asyncparl/Recall-v0` with gymnasium.
"""

from asyncparl.training.environments.base import Episode as Episode
from asyncparl.training.environments.base import RawStep as RawStep
from asyncparl.training.environments.base import Transition as Transition
from asyncparl.training.environments.base import VectorEnvironment as VectorEnvironment
from asyncparl.training.environments.base import environment_seed as environment_seed
from asyncparl.training.environments.catch import CATCH_ID as CATCH_ID
from asyncparl.training.environments.catch import register_catch
from asyncparl.training.environments.counter import COUNTER_ID as COUNTER_ID
from asyncparl.training.environments.counter import register_counter
from asyncparl.training.environments.make import check_given_options as check_given_options
from asyncparl.training.environments.make import find_atari_game as find_atari_game
from asyncparl.training.environments.make import make_environment as make_environment
from asyncparl.training.environments.options import EnvironmentOptions as EnvironmentOptions
from asyncparl.training.environments.recall import RECALL_ID as RECALL_ID
from asyncparl.training.environments.recall import register_recall

register_catch()
register_counter()
register_recall()
