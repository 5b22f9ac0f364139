//! The partner of each row in a window.

use datafusion::common::Result;

use crate::keyed::random_key;
use crate::made_rows::{InputRows, Made, MadeRows, MakeRows, RowAt};

/// Separates the hashes for the order of partners from other hashes.
const PARTNER_DOMAIN: u64 = 0x7061_6972_0000;

/// Arranges the rows of a window in a random cycle. Each row is the partner of the previous one.
#[derive(Debug)]
pub(super) struct Cycle;

impl MakeRows for Cycle {
    fn make<'a>(&'a self, window: &'a InputRows<'a>) -> Result<MadeRows<'a>> {
        let order = |row: RowAt| random_key(window.random_key(row), PARTNER_DOMAIN, window.call);
        let mut cycle: Vec<_> = window.positions().map(|row| (order(row), window.place(row), row)).collect();
        cycle.sort_unstable();
        let mut partners: Vec<Vec<RowAt>> =
            window.parts.iter().map(|part| vec![RowAt { part: 0, row: 0 }; part.len()]).collect();
        for (index, (.., row)) in cycle.iter().enumerate() {
            let (.., partner) = cycle[(index + 1) % cycle.len()];
            partners[row.part as usize][row.row as usize] = partner;
        }
        Ok(Box::new(partners.into_iter().zip(0..).map(|(partners, part)| {
            let parents = (0..partners.len() as u32).map(|row| RowAt { part, row }).collect();
            Ok(Made { partners, ..Made::kept(parents) })
        })))
    }
}
