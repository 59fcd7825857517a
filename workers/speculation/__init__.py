"""Drafts for the next steps: where they come from, how likely they are right, how many pay."""

from workers.speculation.draft_depth import DraftDepth, DraftTimes, depths_up_to
from workers.speculation.fit import Fit
from workers.speculation.offers import MatchOdds, Offer, Rate
from workers.speculation.pass_cost import FINE_SIZES, TimeTable
from workers.speculation.place_odds import PlaceOdds
from workers.speculation.policy import SpeculationPolicy
from workers.speculation.sources import CardSource, TextSource
from workers.speculation.speculation import Speculation
from workers.speculation.taking_in import Expense, Mean, TakingIn
from workers.speculation.text_drafter import NUM_TEXT_SOURCES
