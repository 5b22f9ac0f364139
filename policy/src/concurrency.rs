//! How much work one process has under way: enough that its cores are busy while some of it waits.

/// Pieces under way for each thread, at most. Each holds its rows and their results in memory.
const PIECES_PER_THREAD_MAX: f64 = 8.0;
/// Reads under way beyond those that suffice on average: latencies vary.
const READS_SPARE: f64 = 1.5;

/// Pieces of work under way that keep `threads` threads busy, if a piece is blocked for this share of its time: waiting
/// for a device, a network or a lock, and not for a processor.
///
/// ```
/// assert_eq!(forebay_policy::pieces_under_way(4, 0.0), 4);
/// assert_eq!(forebay_policy::pieces_under_way(4, 0.75), 16);
/// ```
pub fn pieces_under_way(threads: usize, blocked_share: f64) -> usize {
    let runs = 1.0 - if blocked_share.is_finite() { blocked_share.clamp(0.0, 1.0) } else { 0.0 };
    let per_thread = if runs * PIECES_PER_THREAD_MAX < 1.0 { PIECES_PER_THREAD_MAX } else { 1.0 / runs };
    (threads as f64 * per_thread).round().max(1.0) as usize
}

/// Reads under way that bring as much as is computed, by Little's law: a read waits for `latency` seconds, and its rows
/// are computed in `seconds` of a thread. From `least` to `most`.
///
/// ```
/// // A file takes 50 ms to come and 1 ms to compute, by each of 2 threads.
/// assert_eq!(forebay_policy::reads_under_way(0.05, 0.001, 2, 16, 256), 150);
/// ```
pub fn reads_under_way(latency: f64, seconds: f64, threads: usize, least: usize, most: usize) -> usize {
    let wanted = READS_SPARE * latency * threads as f64 / seconds;
    // Nothing is known yet, or computing takes no time.
    let wanted = if wanted.is_nan() { 0.0 } else { wanted };
    (wanted.round() as usize).clamp(least, most.max(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_under_way_the_longer_pieces_wait() {
        for (blocked, pieces) in
            [(0.0, 2), (0.1, 2), (0.5, 4), (0.9, 16), (0.99, 16), (1.0, 16), (f64::NAN, 2), (-1.0, 2)]
        {
            assert_eq!(pieces_under_way(2, blocked), pieces, "{blocked}");
        }
    }

    #[test]
    fn reads_follow_latency_and_stay_within_bounds() {
        let reads = |latency, seconds| reads_under_way(latency, seconds, 2, 16, 256);
        assert_eq!(reads(0.0001, 0.001), 16, "a local disk");
        assert_eq!(reads(0.1, 0.016), 19, "1.5 times 12.5");
        assert_eq!(reads(0.1, 0.0), 256, "reading is all there is to do");
        assert_eq!(reads(0.0, 0.0), 16);
        assert_eq!(reads_under_way(1.0, 0.001, 2, 16, 1), 16);
    }
}
