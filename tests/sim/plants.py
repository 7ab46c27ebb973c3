"""Bugs planted in the production rules or in the simulation's edge, to prove the checkers.

The bugs are in `bugs`, a module for each topic; here stands which checker must find each of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sim.bugs import ending, joining, lanes, lies, lineage, ranks, rounds, shut_out, still, storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One bug, and the rule whose checker must find it."""

    rule: str
    plant: Callable[[pytest.MonkeyPatch], None]
    seed: int = 1  # tried first: one that showed the bug when this was written

    @property
    def name(self) -> str:
        """For the test's name."""
        return f"{self.rule}: {self.plant.__name__.replace('_', ' ')}"


PLANTS = (
    Plant(rule="1", plant=joining.commits_without_the_mark),
    Plant(rule="1", plant=joining.seeds_that_depend_on_their_sender),
    Plant(rule="2", plant=joining.a_registrar_that_asks_no_shard, seed=29),
    Plant(rule="4", plant=joining.admission_beside_a_live_session, seed=2),
    Plant(rule="4", plant=joining.welcome_before_it_is_durable),
    Plant(rule="5", plant=joining.zombie_offers_that_stay, seed=25),
    Plant(rule="5", plant=joining.incarnations_that_need_no_proof, seed=13),
    Plant(rule="5", plant=joining.steps_before_all_have_welcomed, seed=36),
    Plant(rule="8", plant=rounds.every_step_of_anybody_ticks, seed=24),
    Plant(rule="8", plant=rounds.a_clock_that_forgets_its_log),
    Plant(rule="10", plant=rounds.offers_without_a_call, seed=0),
    Plant(rule="10", plant=rounds.calls_to_every_slot_with_a_session, seed=6),
    Plant(rule="11", plant=rounds.a_quorum_of_one_less, seed=12),
    Plant(rule="11", plant=rounds.offers_that_die_with_their_session, seed=12),
    Plant(rule="12", plant=rounds.offers_in_the_order_of_arrival, seed=0),
    Plant(rule="12", plant=rounds.offers_that_say_more_than_they_hold),
    Plant(rule="12", plant=rounds.damage_that_nobody_notices, seed=6),
    Plant(rule="13", plant=lineage.an_offer_merged_again),
    Plant(rule="13", plant=lineage.a_publish_that_does_not_name_what_was_merged),
    Plant(rule="13 (law)", plant=lineage.another_capture_is_told_as_merged),
    Plant(rule="19", plant=storage.entries_that_count_before_they_are_durable),
    Plant(rule="19", plant=storage.a_restart_from_the_version_before),
    Plant(rule="19", plant=storage.a_collection_of_what_is_alive),
    Plant(rule="19", plant=storage.a_sweep_in_every_term, seed=1337),
    Plant(rule="19", plant=storage.a_recovery_without_those_that_were_turned_away, seed=329),
    Plant(rule="19 (momentum)", plant=storage.momenta_that_begin_again_in_each_process),
    Plant(rule="20", plant=storage.a_store_that_overwrites, seed=127),
    Plant(rule="20", plant=storage.epochs_that_stand_still),
    Plant(rule="21", plant=storage.numbers_that_begin_again_after_a_loss, seed=29),
    Plant(rule="22", plant=storage.a_seed_for_what_was_lost, seed=233),
    Plant(rule="22", plant=storage.a_recovery_of_who_comes_first, seed=281),
    Plant(rule="29", plant=storage.a_tape_that_is_not_filled),
    Plant(rule="9 and 10 (called)", plant=rounds.calls_that_outlive_their_session, seed=10),
    Plant(rule="9 and 10 (called)", plant=rounds.due_ticks_that_start_nothing_at_times, seed=0),
    Plant(rule="11 (close)", plant=rounds.a_grace_of_many_steps, seed=24),
    Plant(rule="11 (close)", plant=rounds.a_grace_that_is_cut_short, seed=12),
    Plant(rule="11 (progress)", plant=rounds.calls_that_outlive_their_session, seed=94),
    Plant(rule="11 (progress)", plant=rounds.offers_that_never_leave, seed=12),
    Plant(rule="27 (length)", plant=ending.lengths_of_which_the_largest_counts, seed=7),
    Plant(rule="27 (length)", plant=ending.files_that_are_believed_again, seed=24),
    Plant(rule="27", plant=ending.last_rounds_that_wait_for_their_deadline, seed=0),
    Plant(rule="8 (lower bound)", plant=rounds.a_clock_that_counts_every_other_step, seed=0),
    Plant(rule="3 (tick seen)", plant=joining.joins_that_name_the_lowest_tick),
    Plant(rule="35", plant=lineage.tokens_that_count_again_in_each_session, seed=7),
    Plant(rule="35 (tokens)", plant=lineage.tokens_that_only_the_next_instance_writes),
    Plant(rule="35 (tokens)", plant=lineage.tokens_that_count_again_after_a_restart),
    Plant(rule="2 (old run)", plant=joining.runs_that_are_not_compared, seed=98),
    Plant(rule="4 (word)", plant=joining.words_that_count_whatever_their_number, seed=23),
    Plant(rule="28", plant=lineage.learners_that_begin_their_data_again),
    Plant(rule="28 (data state)", plant=lineage.the_data_state_of_the_last_welcome),
    Plant(rule="28 (data state)", plant=lineage.data_states_that_stay_when_cursors_move, seed=74),
    Plant(rule="28 (data state)", plant=lineage.the_durable_state_for_a_cursor_under_way, seed=162),
    Plant(rule="13 (law)", plant=lineage.late_work_that_counts_as_overlap, seed=5),
    Plant(
        rule="27 (values)", plant=ending.last_rounds_of_nothing_that_leave_what_is_rounded, seed=7
    ),
    Plant(rule="27 (values)", plant=ending.a_last_version_that_is_rounded),
    Plant(rule="27 (values)", plant=ending.a_final_that_names_the_version_before, seed=3),
    Plant(rule="36", plant=ending.an_export_that_waits_for_no_companion),
    Plant(rule="36", plant=ending.a_companion_that_counts_as_unneeded),
    Plant(rule="30", plant=ranks.a_rank_that_survives_its_head, seed=4),
    Plant(rule="30", plant=ranks.a_head_that_goes_on_without_a_rank, seed=4),
    Plant(rule="30", plant=ranks.work_of_a_head_without_a_rank_that_counts, seed=26),
    Plant(rule="30", plant=ranks.a_loss_that_ends_for_good, seed=4),
    Plant(rule="31", plant=ranks.a_head_that_obeys_a_step_early, seed=0),
    Plant(rule="31", plant=ranks.ranks_that_obey_in_their_own_order, seed=0),
    Plant(rule="31", plant=ranks.captures_that_mix_two_boundaries, seed=0),
    Plant(rule="35 (head)", plant=ranks.tokens_of_all_ranks_that_are_added_up, seed=0),
    Plant(rule="35 (head)", plant=ranks.ranks_that_go_on_with_their_own_counts, seed=4),
    Plant(rule="32", plant=lanes.parts_that_cut_blocks, seed=2),
    Plant(rule="32", plant=lanes.parts_that_lie_in_the_order_of_their_arrival, seed=6),
    Plant(rule="32 (norms)", plant=lanes.norms_of_each_part, seed=6),
    Plant(rule="33", plant=lanes.transfers_that_lack_a_part, seed=2),
    Plant(rule="33", plant=lanes.captures_whose_parts_are_mixed, seed=44),
    Plant(rule="34 (Training)", plant=lanes.training_with_a_lane_missing, seed=49),
    Plant(rule="34 (lanes)", plant=lanes.a_lane_that_is_waited_for_without_end, seed=191),
    Plant(rule="34 (lanes)", plant=lanes.a_session_that_outlives_a_lane, seed=30),
    Plant(rule="34 (parts)", plant=lanes.a_version_adopted_without_its_last_part, seed=2),
    Plant(rule="40", plant=still.a_learner_that_waits_whatever_it_is_told, seed=46),
    Plant(rule="38", plant=lies.reports_that_are_not_looked_at, seed=11),
    Plant(rule="38", plant=lies.joins_that_are_not_looked_at, seed=219),
    Plant(rule="41", plant=shut_out.a_grace_without_end, seed=18),
    Plant(rule="41", plant=shut_out.a_grace_of_nothing, seed=18),
    Plant(rule="41", plant=shut_out.certificates_that_nobody_looks_at, seed=18),
    Plant(rule="39", plant=lies.positions_that_nobody_bounds, seed=47),
    Plant(rule="39", plant=lies.ticks_of_joins_that_nobody_confirms, seed=47),
)
