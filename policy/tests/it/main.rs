//! The policies against simulations: what they decide, and what follows of it.

mod cache;
mod properties;
mod random;
mod simulation;
mod trace;
mod workers;
