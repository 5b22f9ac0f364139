//! How long trainers wait for windows, from rates, variances and the number of windows that are computed ahead.
//!
//! Windows that are ready form a queue between workers, which add to it, and trainers, which take from it. It has room
//! for `n` windows. tf.data (VLDB 2021) takes the share of the time in which it is empty from an M/M/1/n queue, which
//! presumes exponential times. Windows of a feed take nearly equal times, and such a queue would ask for workers that
//! nobody needs. A Brownian motion regulated between two barriers (Harrison, "Brownian Motion and Stochastic Flow
//! Systems", 1985, chapter 5) takes any variance: with drift `u` and variance `v` for each window taken, and barriers
//! at 0 and k = n + 1, the lower one is pushed at by `u / (exp(2uk/v) − 1)`. Of each window that trainers could take,
//! this share is not there. With exponential times, v = 2 + u, it agrees with M/M/1/n, exactly so at u = 0. Without
//! variance it is the fluid limit `max(0, −u)`.

/// The share of a trainer's time that passes waiting, between 0 and 1.
///
/// `surplus` is what workers compute beyond what trainers would take, relative to that: −0.5 is half of the demand.
/// `variance` is the squared coefficient of variation of the windows' computing times plus that of the trainers' steps
/// through a window. `ahead` is the number of windows that may be ready, beside the one that trainers read.
///
/// ```
/// use forebay_policy::wait_share;
/// assert_eq!(wait_share(-0.5, 0.0, 4.0), 0.5);
/// assert!(wait_share(0.0, 0.0, 4.0) < 1e-9);
/// assert!(wait_share(0.1, 0.2, 4.0) < wait_share(0.0, 0.2, 4.0));
/// ```
#[must_use]
pub fn wait_share(surplus: f64, variance: f64, ahead: f64) -> f64 {
    // Below −1 there is nothing to take; no variance is a limit that the formula only approaches.
    let surplus = surplus.max(-1.0);
    let variance = variance.max(1e-9);
    let barrier = ahead.max(0.0) + 1.0;
    let exponent = 2.0 * surplus * barrier / variance;
    let lost = match exponent {
        exponent if exponent.abs() < 1e-6 => variance / (2.0 * barrier),
        exponent => surplus / exponent.exp_m1(),
    };
    if lost.is_nan() { 1.0 } else { lost.clamp(0.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_times_agree_with_m_m_1_k() {
        for ahead in [4.0_f64, 16.0] {
            for surplus in [-0.05_f64, 0.0, 0.05, 0.1] {
                let ratio: f64 = 1.0 + surplus;
                let exact = match surplus {
                    0.0 => 1.0 / (ahead + 1.0),
                    _ => (1.0 - ratio) / (1.0 - ratio.powf(ahead + 1.0)),
                };
                let ours = wait_share(surplus, 1.0 + ratio, ahead);
                assert!((ours - exact).abs() < 0.01, "{ahead} {surplus}: {ours} for {exact}");
            }
        }
    }

    #[test]
    fn waits_grow_with_demand_and_variance_and_fall_with_windows_ahead() {
        for surplus in [-2.0, -0.9, -0.1, -1e-9, 0.0, 1e-9, 0.1, 3.0, 1e9] {
            for variance in [0.0, 1e-12, 0.1, 1.0, 10.0] {
                for ahead in [0.0, 1.0, 10.0, 1e6] {
                    let wait = wait_share(surplus, variance, ahead);
                    assert!((0.0..=1.0).contains(&wait), "{surplus} {variance} {ahead}: {wait}");
                    assert!(wait_share(surplus + 0.01, variance, ahead) <= wait + 1e-12);
                    assert!(wait_share(surplus, variance + 0.1, ahead) >= wait - 1e-12);
                    assert!(wait_share(surplus, variance, ahead + 1.0) <= wait + 1e-12);
                }
            }
        }
    }
}
