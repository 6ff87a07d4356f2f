"""The 63 tuned numbers of the autopilot, each with its reason; TRIED.md beside it has the measurements."""

from __future__ import annotations

from typing import Final

# Averages
NEW: Final = 0.1  # weight of the latest step in an average; measured times are noisy
FRESH: Final = 0.3  # the same just after an arm became active: the average is of another passage
FRESH_STEPS: Final = 3  # calls for which that holds; an arm's cost counts as known after as many
GAIN: Final = 0.03  # weight of the latest step in an arm's gain, which is rare and large
DECAY: Final = 0.96  # of older outcomes with each new one: an outcome counts half after 17 others
OUTLIER: Final = 3.0  # a longer time than so many usual ones was disturbed by another program, and counts as so many
LEAST_MS: Final = 0.01  # below it, clocks do not tell times apart

# Disturbance
DISTURBED: Final = 0.85  # of the usual share of processor time: undisturbed passes get 0.98 to 1.02 of it, others 0.75
SHARE_DECAY: Final = 0.99  # of the usual share a pass: on a machine that stays busy, passes count again after 16
COMPUTES: Final = 0.5  # of one core: least usual share from which the processor computes rather than waits for a GPU

# Calibration
DEPTHS: Final = 16  # depths with a correction of their own; deeper ones are too rare to tell apart
PRIOR: Final = 3.0  # tokens for which a drafter's own probabilities count before anything was observed
LEAST_CORRECTION: Final = 0.1  # floor: a factor near zero would allow no draft that could raise it again
MOST_CORRECTION: Final = 2.0  # cap: a modest drafter's few first successes prove little
SUREST: Final = 0.99  # no token is certain
CAUTION: Final = 0.9  # factor of expected tokens: drafts predicted to gain a few percent lost up to 3.5 %
DEEPER: Final = 4  # levels beyond recent accepted depths; without a limit, one confident wrong draft costs 20 steps

# Arms
CHEAP: Final = 0.05  # share of a plain pass up to which an arm is called at every step, used or not
LIGHT: Final = 0.15  # the same where the text repeats itself: short trials measure a call at three times its cost
LEVEL_SPREAD: Final = 0.05  # levels squared; keeps the slope of time by depth finite where depths are alike
GUESS_TOKENS: Final = 1.6  # tokens of a step of an arm that was never called
GUESS_ROWS: Final = 3.0  # its rows
GUESS_SHARE: Final = 0.1  # its time, as a share of a plain pass

# Active set
REVIEW_STEPS: Final = 4  # steps between two reviews, and of a trial: fewer measure too little, more cost too much
FULL_REVIEW_STEPS: Final = 32  # steps between two reviews where nothing has changed; a full one takes up to 0.1 ms
LISTEN_STEPS: Final = 24  # calls of a cheap arm before its gain is known
PATIENCE: Final = 0.5  # plain steps that a light arm may cost before it shows a gain
SLOPE_ROWS: Final = 33  # widths among which the least price of a row is looked for; wider passes never pay alone
MERGE_MS: Final = 2.0  # least plain pass that justifies merging drafts, which takes 0.1 ms
GRAM: Final = 4  # tokens of a run that count as a repetition; shorter ones occur by chance
STREAK: Final = 3  # repetitions in a row that activate a copying arm; 2 did no better
SAME_CHAT: Final = 0.75  # share of the text before that a prompt must begin with to be the same chat

# Exploration
EXPLORE_SHARE: Final = 0.004  # of the time that trials may lose: a tenth of what one percent of speed would show
FIRST_STEPS: Final = (
    2.0,
    10.0,
)  # plain steps that trials may cost at first: more would cost 3 % of a reply where rows are expensive
MOST_SAVED: Final = 12.0  # plain steps that can be saved up; a dearer trial begins then and owes the rest
MOST_OWED: Final = 100.0  # plain steps that can be owed, so that one bad trial does not end exploration for good
TRIAL_LOSS: Final = 1.5  # plain steps beyond what was expected after which a trial ends early
PLAIN_STEPS: Final = 128  # steps without a plain one after which plain decoding is tried, whose time drifts too
ACTIVATION: Final = 0.05  # of a plain pass: what activating an arm is taken to cost
BEST_TOKENS: Final = 3.0  # tokens of a good step: an arm that is too slow to gain even then is not tried
BEST_ROWS: Final = 4  # its rows

# Cost model
WIDTHS: Final = (2, 4, 8, 16, 32, 64, 3, 6, 12, 24, 48)  # measured rows, the most informative first: time is short
SHORT_TEXT: Final = 16  # tokens in the cache at the first measurements
LONG_TEXT: Final = 640  # the same at the second: beyond the 512 cells where llama.cpp's attention changes its path
LONG_LEAST: Final = 64  # tokens: a second length nearer to the first one does not show the cost of a token
LONG_WIDTHS: Final = (2, 8, 32)  # rows that are measured there, besides one; the cost of text grows evenly between
ROUNDS: Final = 3  # measurements of a width; the median ignores one disturbed pass
SHORT_SHARE: Final = 0.6  # of the time, for the short text: the long one needs fewer widths and a prefill
MEASURE_SECONDS: Final = 1.0  # least time for measuring
MEASURE_PASSES: Final = 20  # plain passes for measuring, where they take longer
COST_CLIP: Final = 2.0  # a live pass counts as at most so many times slower or faster than expected
STEADY: Final = 1.15  # of a plain pass: what padded rows may cost so that passes over a network keep their width
KNOWN: Final = 8  # live passes of a width whose median is its cost; later ones count as drift of the machine
CONFIRMED: Final = 4  # live plain passes before the first draft: another program may have disturbed those at load
DRIFT: Final = 0.05  # weight of a pass in the drift of the whole machine
REFINE: Final = 0.02  # weight of a pass in the cost of its own width, once that is known
AGREE: Final = 1.5  # kept costs hold if a plain pass differs by no more than this factor; drift evens out the rest

# Warmup
WARMUP_TOKENS: Final = 40  # of its text: a few more than a draft model reads with its next pass
WARMUP_PREFILL: Final = 8  # the same where the target has to read it
WARMUP_DEPTHS: Final = (1, 2, 1, 2)  # of the measured drafts; two depths tell what a level takes
WARMUP_SECONDS: Final = 0.5  # least time for it
WARMUP_PASSES: Final = 10  # plain passes on top of that

JUDGED: Final = 32  # steps after which a record is shown as a gain
