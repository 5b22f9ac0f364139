//! The policies against simulations: what they decide, and what follows of it.

mod cache;
mod given;
mod local;
mod plan;
mod plan_properties;
mod properties;
mod random;
mod rivals;
mod simulation;
mod trace;
mod training;
mod workers;
