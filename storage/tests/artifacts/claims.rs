//! Which process works on a job.

use std::sync::Mutex;
use std::time::Duration;

use forebay_storage::Stores;
use forebay_storage::artifact::{Claim, Job, SILENCE, holder_name};

use super::support::at_once;
use super::{folders, opened};

#[tokio::test]
async fn a_claim_is_taken_from_a_silent_process_only() {
    let stores = Stores::new();
    let job = opened(&stores, "memory:///a", "job1").await;
    let mut claim = job.claim("p", &at_once).await.unwrap().unwrap();
    assert!(claim.beat().await.unwrap());
    // A sign comes while the other process watches.
    let watched = std::sync::Mutex::new(Some(claim));
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    let (sender, receiver) = (std::sync::Mutex::new(Some(sender)), std::sync::Mutex::new(Some(receiver)));
    let wait = |_| {
        use futures::FutureExt;
        let receiver = receiver.lock().unwrap().take().unwrap();
        async move { receiver.await.unwrap() }.boxed()
    };
    let watching = job.claim("q", &wait);
    let beating = async {
        let mut claim = watched.lock().unwrap().take().unwrap();
        assert!(claim.beat().await.unwrap());
        sender.lock().unwrap().take().unwrap().send(()).unwrap();
        claim
    };
    let (taken, mut claim) = tokio::join!(watching, beating);
    assert!(taken.unwrap().is_none());
    let mut taken = job.claim("q", &at_once).await.unwrap().unwrap();
    assert!(!claim.beat().await.unwrap());
    assert!(taken.beat().await.unwrap());
}

/// The time that a claim waits.
async fn waited(job: &Job, holder: &str) -> (Option<Claim>, Duration) {
    let waited = Mutex::new(Duration::ZERO);
    let wait = |time| {
        *waited.lock().unwrap() += time;
        at_once(time)
    };
    let claim = job.claim(holder, &wait).await.unwrap();
    (claim, waited.into_inner().unwrap())
}

#[tokio::test]
async fn a_claim_that_was_released_is_not_waited_for() {
    let (_folder, roots) = folders();
    let stores = Stores::new();
    for root in roots {
        let job = opened(&stores, &format!("{root}/a"), "job1").await;
        let (first, time) = waited(&job, "p").await;
        assert_eq!(time, Duration::ZERO);
        first.unwrap().release().await.unwrap();
        let (second, time) = waited(&job, "q").await;
        assert_eq!(time, Duration::ZERO);
        let mut second = second.unwrap();
        assert!(second.beat().await.unwrap());
        let (third, time) = waited(&job, "r").await;
        assert_eq!(time, SILENCE);
        // It is not the second's to release any more.
        second.release().await.unwrap();
        assert!(third.unwrap().beat().await.unwrap());
        assert_eq!(waited(&job, "s").await.1, SILENCE);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_claim_of_a_process_that_ended_here_is_not_waited_for() {
    let stores = Stores::new();
    // This process, and an earlier one with its id.
    let living = holder_name(0);
    let parts: Vec<&str> = living.split('/').collect();
    let (host, id, start) = (parts[0], parts[1], parts[2]);
    let ended = format!("{host}/{id}/{start}1/0");
    let elsewhere = format!("{host}x/{id}/{start}1/0");
    for (before, expected) in [(&living, SILENCE), (&ended, Duration::ZERO), (&elsewhere, SILENCE)] {
        let job = opened(&stores, &format!("memory:///{}", blake3::hash(before.as_bytes())), "job1").await;
        assert_eq!(waited(&job, before).await.1, Duration::ZERO);
        let (claim, time) = waited(&job, &holder_name(1)).await;
        assert_eq!((claim.is_some(), time), (true, expected), "{before}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_claim_of_a_process_that_ends_here_is_taken_over_at_once() {
    let job = opened(&Stores::new(), "memory:///a", "job1").await;
    let child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let start = stat[stat.rfind(')').unwrap() + 2..].split(' ').nth(19).unwrap();
    let ours = holder_name(0);
    let holder = format!("{}/{}/{start}/0", ours.split('/').next().unwrap(), child.id());
    job.claim(&holder, &at_once).await.unwrap().unwrap();
    let (child, waits) = (Mutex::new(child), Mutex::new(0));
    let wait = |time| {
        *waits.lock().unwrap() += 1;
        if *waits.lock().unwrap() == 3 {
            let mut child = child.lock().unwrap();
            child.kill().and_then(|()| child.wait()).unwrap();
        }
        at_once(time)
    };
    assert!(job.claim(&ours, &wait).await.unwrap().is_some());
    assert_eq!(*waits.lock().unwrap(), 3);
}

#[tokio::test]
async fn a_damaged_claim_is_watched() {
    let stores = Stores::new();
    let job = opened(&stores, "memory:///a", "job1").await;
    stores.put("memory:///a/_forebay/jobs/job1/1/claims/00000003", "".into()).await.unwrap();
    let (claim, time) = waited(&job, "p").await;
    assert_eq!(time, SILENCE);
    assert!(claim.unwrap().beat().await.unwrap());
}
