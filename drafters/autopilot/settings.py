"""The 64 tuned numbers of the autopilot, each with its reason; TRIED.md in this folder has the measurements."""

from typing import Final

# Averages
NEW: Final = 0.1  # weight of the latest step in an average; measured times are noisy
FRESH: Final = 0.3  # the same just after an arm became active: its average comes from another passage of the text
FRESH_STEPS: Final = 3  # calls after activation that get this weight; after as many, an arm's cost counts as known
GAIN: Final = 0.03  # weight of the latest step in an arm's gain; gains are rare and large
DECAY: Final = 0.96  # factor on older outcomes with each new one: an outcome's weight halves after 17 others
OUTLIER: Final = 3.0  # times the usual time: a longer or shorter one was disturbed, and is cut to this
LEAST_MS: Final = 0.01  # clocks cannot distinguish shorter times

# Disturbance
DISTURBED: Final = 0.85  # least share of the usual processor time: undisturbed passes get 0.98 to 1.02, others 0.75
SHARE_DECAY: Final = 0.99  # factor on the usual share per pass: if the machine stays busy, passes count again after 16
COMPUTES: Final = 0.5  # cores; if passes usually use fewer, the processor waits for a GPU instead of computing

# Calibration
DEPTHS: Final = 16  # depths with a correction of their own; deeper nodes are too rare and use the last one
PRIOR: Final = 3.0  # weight of a drafter's own probabilities, in tokens, before anything was observed
STEADY_DECAY: Final = 0.99  # the same factor for drafters on hidden states: a network's probabilities fit all texts
STEADY_PRIOR: Final = 16.0  # the same weight for them
LEAST_CORRECTION: Final = 0.1  # floor: a factor near zero would allow no draft that could raise it again
MOST_CORRECTION: Final = 2.0  # cap: the first few successes of an underconfident drafter prove little
SUREST: Final = 0.99  # cap of a corrected probability: no token is certain
CAUTION: Final = 0.9  # factor on expected tokens: drafts predicted to gain a few percent lost up to 3.5 %
DEEPER: Final = 4  # levels of a draft beyond recent right depths; without a limit, a confident wrong one costs 20 steps

# Arms
CHEAP: Final = 0.05  # share of a plain pass; an arm whose calls take less is called at every step
LIGHT: Final = 0.15  # the same if the text repeats itself: short trials measure a call at three times its cost
LEVEL_SPREAD: Final = 0.05  # levels squared; added to the variance of depth, so that the time per level is finite
GUESS_TOKENS: Final = 1.6  # assumed tokens of a step of an arm that was never called
GUESS_ROWS: Final = 3.0  # assumed rows of such a step
GUESS_SHARE: Final = 0.1  # assumed time of such an arm, as a share of a plain pass

# Active set
REVIEW_STEPS: Final = 4  # steps between two reviews, and of a trial: fewer measure too little, more cost too much
IDLE_REVIEWS: Final = 4  # times as many while all arms are idle and no trial is affordable: little changes then
FULL_REVIEW_STEPS: Final = 32  # steps between two full reviews, of up to 0.2 ms each, while nothing changes
IDLE_FULL_STEPS: Final = 128  # the same while all arms are idle, and before plain decoding is tried: times may drift
LISTEN_STEPS: Final = 24  # calls of a cheap arm before its gain is known
PATIENCE: Final = 0.5  # plain steps that a light arm may cost before it shows a gain
SLOPE_ROWS: Final = 33  # widest pass in the search for the least cost of a row; wider passes never pay alone
SHORT_MS: Final = 2.0  # a shorter plain pass: merging drafts, 0.1 ms, does not pay, and idle steps are rarely reviewed
GRAM: Final = 4  # tokens of an n-gram whose second occurrence is a repetition; shorter ones repeat by chance
STREAK: Final = 3  # repetitions in a row that activate a copying arm; 2 did no better
SAME_CHAT: Final = 0.75  # share of the previous text that a prompt must start with to count as the same chat

# Exploration
EXPLORE_SHARE: Final = 0.004  # share of the elapsed time that trials may lose: less than half a percent of speed
NEW_SHARE: Final = 0.02  # the same where a drafter that reads along is not known yet: a loss of the first replies only
FIRST_STEPS: Final = (2.0, 12.0)  # least and most plain steps of the first budget: most where rows are cheap, on a GPU
MOST_SAVED: Final = 12.0  # largest budget, in plain steps; a more expensive trial begins at it and leaves a debt
MOST_OWED: Final = 100.0  # largest debt, in plain steps, so that one bad trial does not end exploration for good
TRIAL_LOSS: Final = 1.5  # plain steps that a trial may lose beyond its price before it ends early
BRIEF_MS: Final = 15.0  # a shorter plain pass: trials are as short as possible, since 4 steps lose more than one wins
BRIEF_STEPS: Final = 2  # drafts of such a trial
ACTIVATION: Final = 0.05  # assumed cost of activating an arm, as a share of a plain pass

# Cost model
WIDTHS: Final = (2, 4, 8, 16, 32, 64, 3, 6, 12, 24, 48)  # measured rows, the most informative first: time is limited
SURE_WIDTHS: Final = 3  # of these are measured on the busiest machine: without any, a row would count as a whole pass
SHORT_TEXT: Final = 16  # tokens in the cache at the first measurements
LONG_TEXT: Final = 640  # the same at the second ones: more than the 512 cells where llama.cpp's attention changes
LONG_WIDTHS: Final = (2, 8, 32)  # rows measured with the long text, besides 1; the cost of text grows evenly between
ROUNDS: Final = 3  # measurements of a width; the least of them is the least disturbed
MEASURE_SECONDS: Final = 1.0  # least time for measuring; drafters are warmed up for half as long
MEASURE_PASSES: Final = 20  # plain passes for measuring, if these take longer; half as many for warming up
REPLAYED: Final = 3  # equal passes before the one that is timed: a GPU computes the first one, captures the second
KNOWN: Final = 8  # first live passes of a width, whose median is its cost; later ones show the machine's drift
CONFIRMED: Final = 4  # live plain passes before the first draft: another program may have disturbed those at load
DRIFT: Final = 0.05  # weight of a pass in the drift of the whole machine
REFINE: Final = 0.02  # weight of a pass in the cost of its own width, once that is known
AGREE: Final = 1.5  # stored costs are used if a plain pass differs by less than this factor; drift corrects the rest

# Warmup
WARMUP_TOKENS: Final = 40  # length of the text: more than a draft model adds to its next pass
WARMUP_PREFILL: Final = 8  # the same for drafters that need hidden states, where the target reads the text
WARMUP_DEPTHS: Final = (1, 2, 1, 2)  # of the measured drafts; two different depths show the time of a level
HEARD: Final = 4  # prompts that a drafter on hidden states reads before its first trial: without them it guesses badly

JUDGED: Final = 32  # steps after which a record is shown as a gain
