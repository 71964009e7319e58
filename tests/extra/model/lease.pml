/* Leased mode, exhaustively: claim, calls, fenced writes, completion, crashes, lapsing leases, takeover, cleanup.
 *
 * Every `atomic` block is one transaction of the code that its comment names, or one statement that commits by itself.
 * Between two of them anything may happen. Workers are killed at any point (up to CRASHES in all), and their leases lapse at any time (up to LAPSES), which makes
 * zombies of those that are still running. Clients retry until they have a final answer.
 *
 * With -DRECOVERY clients may also go away for ever, and recover_idempotency_keys runs in their place.
 *
 *   -DCLIENTS=2            on_abandoned="retry-keyed": each start carries its derived key or not, and the gateway honours
 *                          those that it gets
 *   -DRETRY                "retry", and a gateway that recognizes each call
 *   -DHOLD                 "hold", and a gateway without keys
 *   -DCATCHES              the view may catch the error of its call, and answer
 *   -DFORGETFUL            "retry-keyed" does not ask for this attempt's key: the checker must find a second charge
 *   -DANY_ANSWER           a key completes whatever its row counts: with -DCATCHES the checker must find a charge without
 *                          an order
 *   -DNO_FENCE             every fence passes: the checker must find a second order
 *   -DCARELESS             hold, and the person does not know whether the worker is dead: the checker must find a second charge
 *   -DNO_DOUBT             hold, but doubts are not looked at: the checker must find a second charge
 *   -DSAME_ATTEMPT         recovery takes a key over at the attempt of its worker: the checker must find a second order
 *   -DHASTY                reconcile answers "not charged" while the worker may be slow: the checker must find a charge
 *                          without an order
 */
#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
#ifndef LAPSES
#define LAPSES 2
#endif

#ifndef LEFT
#define LEFT 2              /* how often reconcile may be asked in vain: each time is like the one before */
#endif

mtype = { none, in_progress, completed, failed };   /* IdempotencyKey.status; none: no row */
mtype = { not_started, started, done };             /* IdempotencyStep: no row, finished_at NULL, finished */

mtype status = none;
byte attempt = 0;
bool live = false;          /* locked_until > clock */
mtype charge = not_started;
byte unknown = 0, effects = 0;  /* IdempotencyKey: the counts of the row, changed beside the step */
bool keyed = true;          /* IdempotencyStep.keyed, which only ever turns false */
bool ordered = false;       /* the step of the local write */
byte result = 0;            /* the stored response: which attempt made it */

byte charges = 0;           /* the gateway's books */
bool known = false;         /* it has charged under the derived key */
byte orders = 0;            /* our books */

byte forgotten = 0;         /* starts without the derived key */
byte crashes = 0, lapses = 0, finished = 0, gone = 0, in_vain = 0;
bool settled = false;       /* the key has been completed */
bool working[CLIENTS + 1];  /* a worker process is alive for this client; the last one is the recovery */
byte doing[CLIENTS + 1];    /* its attempt */

#ifdef NO_FENCE
#define MINE true
#else
#define MINE (status == in_progress && attempt == mine)   /* Statements.fenced */
#endif
#define DOUBT (unknown > 0)
/* Note [One truth about a key]: the row and the step in one transaction */
#define COUNTED assert(unknown == (charge == started -> 1 : 0) && effects == (charge == done -> 1 : 0))
inline start_call() {
    if :: charge == not_started -> charge = started; unknown++ :: else fi;   /* a repeat counts nothing */
    COUNTED
}
inline finish_call() {
    if :: charge == started -> charge = done; unknown--; effects++ :: else fi;   /* AlreadyFinished */
    COUNTED
}
#ifdef ANY_ANSWER
#define MAY_COMPLETE true
#else
#define MAY_COMPLETE (unknown == 0)                        /* Store.complete(settled=True) */
#endif
#if defined(HOLD) || defined(RETRY)
#define RECOGNIZED true
#else
#ifdef FORGETFUL
#define RECOGNIZED keyed
#else
#define RECOGNIZED (keyed && sends)                        /* Journal.start_call, recognizable */
#endif
#define KEYED
#endif
#ifdef NO_DOUBT
#define MAY_RUN true
#else
#ifdef HOLD
#define MAY_RUN (!DOUBT)                                   /* decision.resumed */
#else
#ifdef KEYED
#define MAY_RUN (!DOUBT || keyed)
#else
#define MAY_RUN true
#endif
#endif
#endif

#define AT_WORK(who) (working[who] && doing[who] == attempt)
#if CLIENTS == 2
#define DEAD (!AT_WORK(0) && !AT_WORK(1) && !AT_WORK(2))
#define NOBODY (!working[0] && !working[1] && !working[2])
#else
#define NOBODY (!working[0] && !working[1] && !working[2] && !working[3])
#define DEAD (!AT_WORK(0) && !AT_WORK(1) && !AT_WORK(2) && !AT_WORK(3))
#endif

inline die() { /* kill -9: whatever was not committed is gone */
    crashes++; working[me] = false; goto retry
}

proctype Client(byte me) {
    byte mine;
    mtype knows_charge;
    bool knows_order, sends;
retry:
    /* Store.claim: one transaction */
    atomic {
        knows_charge = not_started; knows_order = false; mine = 0; sends = true;
        if
        :: status == completed -> goto answered
#ifdef RECOVERY
        :: gone++; goto away                                /* this client does not come back */
#endif
        :: status == none ->
            status = in_progress; attempt++; live = true; mine = attempt
        :: (status == failed || (status == in_progress && !live)) && MAY_RUN ->
            status = in_progress; attempt++; live = true; mine = attempt;
            knows_charge = (charge == done -> done : not_started); knows_order = ordered   /* Operation.__init__ */
        fi;   /* a live lease, or a doubt that is held: 409, and this client comes again */
        working[me] = true; doing[me] = mine
    }
    if :: crashes < CRASHES -> die() :: true fi;

    if
    :: knows_charge == done
    :: else ->
        /* Operation.call: Journal.start_call */
        atomic {
#ifdef KEYED
            if :: sends = true :: forgotten == 0 -> forgotten++; sends = false fi;   /* derive_key before the call, or not */
#endif
            if
            :: MINE && DOUBT && !RECOGNIZED ->              /* NotRepeatable: 409, failed and held; the next attempt may */
                status = failed; live = false; working[me] = false; goto retry
            :: MINE && !(DOUBT && !RECOGNIZED) ->
                start_call();
                keyed = keyed && sends
            :: !MINE -> goto lost
            fi
        }
        if :: crashes < CRASHES -> die() :: true fi;
        /* the call itself: nothing can fence it */
        atomic {
#ifdef HOLD
            charges++
#else
#ifdef KEYED
            if
            :: sends && known                              /* the derived key is the same in every attempt */
            :: else -> charges++; known = known || sends
            fi
#else
            charges = 1
#endif
#endif
        }
        if :: crashes < CRASHES -> die()
           :: true
           :: crashes < CRASHES ->                          /* no answer: the view raises, the key is failed */
                crashes++;
                atomic { if :: MINE -> status = failed; live = false :: else fi; working[me] = false }
                goto retry
#ifdef CATCHES
           :: crashes < CRASHES -> crashes++; goto answers  /* no answer: the view catches the error, and answers */
#endif
        fi;
        /* Journal.finish_call: the fence and the step in one transaction */
        atomic { if :: MINE -> finish_call() :: else -> goto lost fi }
        if :: crashes < CRASHES -> die() :: true fi
    fi;

    if
    :: knows_order
    :: else ->
        /* Operation.write: the fence, the work and the step in one transaction */
        atomic { if :: MINE -> orders++; ordered = true :: else -> goto lost fi }
        if :: crashes < CRASHES -> die() :: true fi
    fi;

answers:
    /* Store.complete, or Journal.fail */
    atomic {
        if
        :: MINE && !MAY_COMPLETE -> status = failed; live = false; working[me] = false; goto retry
        :: else
        fi
    }
    atomic { if :: MINE -> assert(status != completed); status = completed; live = false; result = mine; settled = true :: else -> goto lost fi }
    if :: crashes < CRASHES -> die() :: true fi;
    goto answered;
lost:
    working[me] = false;
    goto retry;
answered:
    atomic {
        working[me] = false;
        assert(status == completed && (mine == 0 || mine == result));   /* everybody gets the one answer */
        assert(orders == 1 && charges == 1);
        finished++
    }
away:
    skip
}

#ifdef RECOVERY
#define ATTENTION ((status == failed && unknown + effects > 0) || (status == in_progress && !live))   /* needs_attention */
/* recover_idempotency_keys, by cron: reconcile looks into the gateway's books, and makes up for what is missing. */
active proctype Recovery() {
    byte mine;
end:
again:
    /* Store.resume */
    atomic {
        working[CLIENTS] = false;
        ATTENTION && (charges > 0 || in_vain < LEFT);
        status = in_progress; live = true;
#ifndef SAME_ATTEMPT
        attempt++;
#endif
        mine = attempt; working[CLIENTS] = true; doing[CLIENTS] = mine
    }
    if :: crashes < CRASHES -> crashes++; goto again :: true fi;
    if
    :: charges == 0 ->
#ifdef HASTY
        goto complete
#else
        /* reconcile returns None: Store.fail, with the doubt as it was */
        atomic { if :: MINE -> status = failed; live = false; in_vain++ :: else fi }
        goto again
#endif
    :: else
    fi;
    /* what it has found: Store.start_call, Store.finish_call */
    if
    :: charge == done
    :: else ->
        atomic { if :: MINE -> start_call() :: else -> goto again fi }
        if :: crashes < CRASHES -> crashes++; goto again :: true fi;
        atomic { if :: MINE -> finish_call() :: else -> goto again fi }
        if :: crashes < CRASHES -> crashes++; goto again :: true fi
    fi;
    if
    :: ordered
    :: else ->
        atomic { if :: MINE -> orders++; ordered = true :: else -> goto again fi }
        if :: crashes < CRASHES -> crashes++; goto again :: true fi
    fi;
complete:
    atomic { if :: MINE -> status = completed; live = false; result = mine; settled = true :: else fi }
    goto again
}
#endif

/* Time passes: a lease may lapse while its worker is still running, and does so when its worker is dead. */
active proctype Clock() {
end:
    do
    :: atomic { status == in_progress && live && lapses < LAPSES -> lapses++; live = false }
    :: atomic { status == in_progress && live && DEAD -> live = false }
    od
}

/* cleanup_idempotency_keys: Statements.is_expired; here everything is old enough at any time but a completed key, which
   clients may retry until its ttl is over: when all have finished. */
active proctype Cleanup() {
end:
    do
    :: atomic { status == completed && finished + gone == CLIENTS -> status = none; charge = not_started; unknown = 0; effects = 0; keyed = true; ordered = false; break }
    od
}

#if defined(HOLD) || defined(KEYED)
#ifdef CARELESS
#define KNOWS true
#else
#if defined(RECOVERY) || defined(KEYED)
#define KNOWS NOBODY        /* a recovery in vain and a repeat have a new attempt: the worker of an earlier one may still
                               be about to call */
#else
#define KNOWS DEAD
#endif
#endif
/* A person (execution.resolution), who knows that the worker is dead: the books of the gateway decide. */
active proctype Person() {
end:
    do
    :: atomic {
        (status == failed || (status == in_progress && !live)) && DOUBT && KNOWS ->
        status = failed; live = false;
        if                                                 /* record_outcome : release_for_retry */
        :: charges > 0 -> finish_call()
        :: else -> charge = not_started; unknown = 0; keyed = true
        fi
       }
    od
}
#endif

init {
    atomic {
        byte i;
        for (i : 0 .. CLIENTS - 1) { run Client(i) }
    }
}

#define TWICE (orders > 1 || charges > 1)
ltl once { [] !TWICE }
ltl nobody_is_stuck { <> (finished + gone == CLIENTS) }
ltl no_charge_is_left { [] (charges > 0 -> <> (settled && orders > 0)) }
