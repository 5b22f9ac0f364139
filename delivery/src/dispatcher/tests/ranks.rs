//! Ranks that share an epoch by claims.

use super::*;

/// Returns rank `rank` of two of job `j`, as a process that started at `session`.
fn rank(rank: u64, session: u64) -> crate::Claimer {
    let settings = ReadSettings { batch_size: 1, epochs: 1, drop_last: false, rank, world_size: 2 };
    crate::Claimer::new("f".into(), "j".into(), session << 16, settings, crate::Claim::default(), None).expect("new")
}

/// Sends a rank's message, takes its answer, and returns the number of claims that it then holds.
fn claim(dispatcher: &mut Dispatcher<SixWindows>, rank: &mut crate::Claimer) -> Result<usize, Unanswered> {
    let message = rank.sync();
    dispatcher.claim_sync(&message, LATER)?;
    let answer = dispatcher.claim_answer(&message, LATER)?;
    let granted = answer.reply.granted.len();
    rank.reply(answer);
    Ok(granted)
}

#[test]
fn of_two_processes_of_a_rank_the_older_is_refused_at_once() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut old, mut other, mut new) = (rank(0, 5), rank(1, 6), rank(0, 9));
    let mut worker = worker(7, "w7", 1_000);
    for _ in 0..6 {
        let _ = (claim(&mut dispatcher, &mut old), claim(&mut dispatcher, &mut other));
        exchange(&mut dispatcher, &mut worker, LATER);
    }
    assert_eq!(claim(&mut dispatcher, &mut old), Ok(2));
    // The waiting call ends as soon as the newer process has sent a message.
    let waiting = old.sync();
    dispatcher.claim_sync(&waiting, LATER).expect("still the newest");
    claim(&mut dispatcher, &mut new).expect("the newest");
    let replaced = Unanswered::Replaced { rank: 0, job: "j".to_owned() };
    assert_eq!(dispatcher.claim_answer(&waiting, LATER), Err(replaced.clone()));
    assert_eq!(claim(&mut dispatcher, &mut old), Err(replaced.clone()));
    assert!(replaced.report().message.contains("rank 0 of job \"j\""), "{:?}", replaced.report());
    for _ in 0..6 {
        let _ = (claim(&mut dispatcher, &mut new), claim(&mut dispatcher, &mut other));
    }
    // The newer process has delivered nothing, so it is granted the claims that the older one held.
    assert_eq!(claim(&mut dispatcher, &mut new), Ok(2));
    assert_eq!(claim(&mut dispatcher, &mut old), Err(replaced));
}

#[test]
fn an_older_process_is_recognized_by_the_tokens_of_other_ranks() {
    // The second dispatcher knows only the old process, until another rank that resumed from a token reaches it.
    let meets = || {
        let (mut first, mut second) = (dispatcher(1, &["f"]), dispatcher(2, &["f"]));
        let (mut old, mut new, mut other) = (rank(0, 5), rank(0, 9), rank(1, 6));
        for _ in 0..2 {
            let _ = (claim(&mut first, &mut new), claim(&mut first, &mut other));
        }
        let (token, begin) = (other.token(), crate::Claim::default());
        let settings = ReadSettings { batch_size: 1, epochs: 1, drop_last: false, rank: 1, world_size: 2 };
        let marks = token.claims.as_deref();
        let resumed = crate::Claimer::new("f".into(), "j".into(), 7 << 16, settings, begin, marks);
        claim(&mut second, &mut old).expect("alone");
        claim(&mut second, &mut resumed.expect("its own token")).expect("the newest of its rank");
        claim(&mut second, &mut old)
    };
    assert!(matches!(meets(), Err(Unanswered::Replaced { rank: 0, .. })));
    break_rule(Some(Rule::TokensNameTheNewestProcesses));
    let planted = meets();
    break_rule(None);
    assert!(planted.is_ok(), "{planted:?}");
}

/// Delivers all claims that a rank holds, and returns them.
fn deliver(rank: &mut crate::Claimer) -> Vec<u64> {
    let mut delivered = Vec::new();
    while let Some((granted, _)) = rank.take() {
        rank.delivered(granted.claim, granted.end);
        delivered.push(granted.claim.run);
    }
    delivered
}

/// Lets a rank read on its own until it ends, and returns the claims that it delivered.
fn finish(dispatcher: &mut Dispatcher<SixWindows>, rank: &mut crate::Claimer, worker: &mut crate::Worker) -> Vec<u64> {
    let mut delivered = Vec::new();
    for _ in 0..40 {
        claim(dispatcher, rank).expect("the newest");
        exchange(dispatcher, worker, LATER);
        delivered.extend(deliver(rank));
    }
    assert!(rank.has_ended(), "{:?}", rank.latest());
    delivered
}

#[test]
fn a_rank_that_has_ended_is_not_awaited_when_another_resumes() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut zero, mut one, mut worker) = (rank(0, 5), rank(1, 6), worker(7, "w7", 1_000));
    for _ in 0..8 {
        let _ = (claim(&mut dispatcher, &mut zero), claim(&mut dispatcher, &mut one));
        exchange(&mut dispatcher, &mut worker, LATER);
    }
    // Rank 1 delivers one batch, and is killed. Rank 0 reads to its end.
    let (first, _) = one.take().expect("granted");
    one.delivered(first.claim, first.claim.run * 4 + 1);
    let (token, begin) = (one.token(), crate::Claim::default());
    let mut delivered = finish(&mut dispatcher, &mut zero, &mut worker);
    let mut resumed = resume(1, &token, 20);
    let mut rest = finish(&mut dispatcher, &mut resumed, &mut worker);
    rest.extend(delivered.iter());
    delivered.clone_from(&rest);
    delivered.sort_unstable();
    assert_eq!(delivered, (0..delivered.len() as u64).collect::<Vec<_>>(), "each claim once");
    // All is delivered. A token from after the end of rank 0 says so to a dispatcher that knows nothing.
    let mut another = self::dispatcher(2, &["f"]);
    let mut again = resume(1, &resumed.token(), 30);
    assert!(finish(&mut another, &mut again, &mut worker).is_empty());
    // The tokens of the ranks that are left say all for another number of ranks.
    let alone = ReadSettings { batch_size: 1, epochs: 1, drop_last: false, rank: 0, world_size: 1 };
    let marks = again.token();
    let mut alone =
        crate::Claimer::new("f".into(), "j".into(), 40 << 16, alone, begin, marks.claims.as_deref()).expect("whole");
    assert!(finish(&mut another, &mut alone, &mut worker).is_empty());
}

#[test]
fn a_dispatcher_that_has_just_started_takes_the_end_of_a_rank_from_its_last_message() {
    let mut first = dispatcher(1, &["f"]);
    let (mut zero, mut one, mut worker) = (rank(0, 5), rank(1, 6), worker(7, "w7", 1_000));
    for _ in 0..8 {
        let _ = (claim(&mut first, &mut zero), claim(&mut first, &mut one));
        exchange(&mut first, &mut worker, LATER);
    }
    finish(&mut first, &mut one, &mut worker);
    // Rank 0 has not heard of the end, and the dispatcher that has restarts.
    let mut second = dispatcher(2, &["f"]);
    second.claim_sync(&one.leave(), LATER).expect("the newest");
    zero.turn();
    assert_eq!(finish(&mut second, &mut zero, &mut worker).len(), 2);
}

#[test]
fn a_rank_resumes_from_before_claims_of_a_rank_that_has_ended() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let (mut zero, mut one, mut worker) = (rank(0, 5), rank(1, 6), worker(7, "w7", 1_000));
    for _ in 0..8 {
        let _ = (claim(&mut dispatcher, &mut zero), claim(&mut dispatcher, &mut one));
        exchange(&mut dispatcher, &mut worker, LATER);
    }
    finish(&mut dispatcher, &mut one, &mut worker);
    // Rank 0 hears of the end before it saves a token. Then all claims are done, and the first are added up.
    claim(&mut dispatcher, &mut zero).expect("the newest");
    let (first, _) = zero.take().expect("granted");
    zero.delivered(first.claim, first.claim.run * 4 + 1);
    let token = zero.token();
    zero.delivered(first.claim, first.end);
    let mut delivered = finish(&mut dispatcher, &mut zero, &mut worker);
    delivered.push(first.claim.run);
    assert!(zero.latest().is_some_and(|reply| reply.base.passed > 0));
    // All ranks resume, and rank 1 has not come yet. The token knows what the dispatcher has added up.
    let mut again = finish(&mut dispatcher, &mut resume(0, &token, 20), &mut worker);
    again.sort_unstable();
    delivered.sort_unstable();
    assert_eq!(again, delivered);
}

/// Resumes a rank of two of job `j` from its token.
fn resume(rank: u64, token: &crate::Token, session: u64) -> crate::Claimer {
    let settings = ReadSettings { batch_size: 1, epochs: 1, drop_last: false, rank, world_size: 2 };
    let token: crate::Token = token.to_string().parse().expect("own text");
    let claims = token.claims.as_deref();
    crate::Claimer::new("f".into(), "j".into(), session << 16, settings, crate::Claim::default(), claims)
        .expect("its own token")
}

#[test]
fn the_end_of_an_old_process_is_not_trusted_when_any_dispatcher_knows_of_a_newer_one() {
    let resumed = |rule| {
        let (mut here, mut there) = (dispatcher(1, &["f"]), dispatcher(2, &["f"]));
        let (mut zero, mut one, mut worker) = (rank(0, 5), rank(1, 6), worker(7, "w7", 1_000));
        for _ in 0..8 {
            let _ = (claim(&mut here, &mut zero), claim(&mut here, &mut one));
            exchange(&mut here, &mut worker, LATER);
        }
        // Rank 1 saves a token after one batch. Its process is replaced, does not know that, and reads to its end.
        let (first, _) = one.take().expect("granted");
        one.delivered(first.claim, first.claim.run * 4 + 1);
        let early = one.token();
        one.delivered(first.claim, first.end);
        finish(&mut here, &mut one, &mut worker);
        let mut newer = resume(1, &early, 20);
        claim(&mut there, &mut newer).expect("the newest");
        // Rank 0 hears of the end before it saves a token, and restarts.
        claim(&mut here, &mut zero).expect("the newest");
        let (first, _) = zero.take().expect("granted");
        zero.delivered(first.claim, first.claim.run * 4 + 1);
        let mut again = resume(0, &zero.token(), 30);
        // Only the other dispatcher knows of the newer process, and says so to whoever announces itself there.
        let announced = again.announce();
        there.claim_sync(&announced, LATER).expect("the newest");
        break_rule(rule);
        again.reply(there.claim_answer(&announced, LATER).expect("the newest"));
        break_rule(None);
        let mut delivered = Vec::new();
        for _ in 0..20 {
            claim(&mut here, &mut again).expect("the newest");
            exchange(&mut here, &mut worker, LATER);
            delivered.extend(deliver(&mut again));
        }
        let awaited = again.latest().map(|reply| reply.awaited.clone()).unwrap_or_default();
        (again.has_ended(), awaited, here, again, newer, worker, delivered)
    };
    let (has_ended, awaited, ..) = resumed(Some(Rule::AnyDispatcherNamesTheNewest));
    assert!(has_ended && awaited.is_empty(), "it ends without the claims that only the old process had");
    let (has_ended, awaited, mut here, mut zero, mut one, mut worker, mut delivered) = resumed(None);
    assert_eq!((has_ended, awaited), (false, vec![1]));
    one.turn();
    for _ in 0..40 {
        let _ = (claim(&mut here, &mut zero), claim(&mut here, &mut one));
        exchange(&mut here, &mut worker, LATER);
        delivered.extend(deliver(&mut zero));
        delivered.extend(deliver(&mut one));
    }
    assert!(zero.has_ended() && one.has_ended());
    delivered.sort_unstable();
    assert_eq!(delivered, (0..8).collect::<Vec<_>>(), "each claim once");
}

#[test]
fn status_names_the_awaited_ranks() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let mut here = rank(0, 5);
    claim(&mut dispatcher, &mut here).expect("new");
    claim(&mut dispatcher, &mut here).expect("here");
    let job = |now| dispatcher.status(now).feeds[0].jobs[0].clone();
    assert_eq!((job(LATER + 900).awaited, job(LATER + 900).awaiting_ms), (vec![1], 900));
    assert_eq!(job(LATER + 9_000).awaiting_ms, 0, "no rank asks any more");
}

/// Otherwise workers and ranks, which look for each other at the next dispatcher, may miss each other for ever.
#[test]
fn workers_stay_where_ranks_wait_for_others() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let mut worker = worker(7, "w7", 1_000);
    let mut is_waiting = |dispatcher: &mut Dispatcher<_>, now| {
        dispatcher.worker_sync(&worker.sync(), now).expect("one worker");
        dispatcher.worker_reply(7, now).expect("known").has_waiting_ranks
    };
    assert!(!is_waiting(&mut dispatcher, LATER));
    let (mut zero, mut one) = (rank(0, 5), rank(1, 6));
    claim(&mut dispatcher, &mut zero).expect("new");
    assert!(is_waiting(&mut dispatcher, LATER));
    let later = (1..20).map(|step| is_waiting(&mut dispatcher, LATER + 500 * step)).collect::<Vec<_>>();
    assert!(later[0] && !later[18], "the rank has turned away: {later:?}");
    let mut dispatcher = self::dispatcher(2, &["f"]);
    for _ in 0..4 {
        let _ = (claim(&mut dispatcher, &mut zero), claim(&mut dispatcher, &mut one));
    }
    assert!(!is_waiting(&mut dispatcher, LATER), "all ranks are here");
}

#[test]
fn a_feed_has_a_limited_number_of_jobs_and_a_message_of_claims_and_broken_leases() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let mut message = rank(0, 5).sync();
    let mut named = |dispatcher: &mut Dispatcher<SixWindows>, job: usize| {
        message.claims.job = format!("job {job}");
        dispatcher.claim_sync(&message, LATER)
    };
    let taken = (0..100).take_while(|&job| named(&mut dispatcher, job).is_ok()).count();
    assert_eq!((taken, dispatcher.groups()), (claiming::JOBS_MAX, claiming::JOBS_MAX));
    assert_eq!(named(&mut dispatcher, taken), Err(Unanswered::TooManyJobs));
    assert_eq!(named(&mut dispatcher, 0), Ok(()));
    // They are forgotten when they are silent.
    let much_later = LATER + 2 * DispatcherSettings::default().idle_feed_ms;
    let mut trainer = trainer("f", 1);
    for now in (LATER..=much_later).step_by(900) {
        ask(&mut dispatcher, &mut trainer, now);
    }
    assert_eq!(dispatcher.groups(), 0);

    let mut message = rank(0, 5).sync();
    let granted = crate::Granted { claim: (0, 0).into(), end: 1, window: window(0), window_offset: 0 };
    message.claims.held = vec![granted; 1_000];
    assert!(matches!(dispatcher.claim_sync(&message, much_later), Err(Unanswered::Invalid(_))));

    let broken = |index| BrokenLease { window: window(index), lease: 1, worker: 1, missing: false };
    let before = dispatcher.status(much_later).feeds[0].readers[0].at;
    for broken in [vec![broken(0); 1_000], vec![broken(6)]] {
        let lie = ReaderSync { broken, at: window(3), ..trainer.sync(much_later) };
        dispatcher.reader_sync(&lie, much_later).expect("ignored");
    }
    assert_eq!(dispatcher.status(much_later).feeds[0].readers[0].at, before);
}

#[test]
fn an_answer_names_the_first_of_many_awaited_ranks() {
    let mut dispatcher = dispatcher(1, &["f"]);
    let mut message = rank(0, 5).sync();
    message.world_size = 60_000;
    dispatcher.claim_sync(&message, LATER).expect("valid");
    let awaited = dispatcher.claim_answer(&message, LATER).expect("known").reply.awaited;
    assert_eq!(awaited, (0..crate::trouble::AWAITED_MAX as u64).collect::<Vec<_>>());
}
