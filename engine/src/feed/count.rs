//! Counts the offsets of an epoch by reading its windows, without transforming their rows.

use forebay_delivery::{Plan, WindowId};

use super::Feed;
use super::plan::WindowPlan;
use crate::error::Result;

impl Feed {
    /// The number of offsets in `epoch`, over all ranks: samples, bad rows, and gaps between length buckets. It is read
    /// from the files unless it is known. Windows that readers of this feed hold are not read again.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn count(&self, epoch: u64) -> Result<u64> {
        if let Some(known) = self.offsets_per_epoch() {
            return Ok(known);
        }
        let plan = WindowPlan(std::sync::Arc::clone(&self.core().plan));
        let mut offsets = 0;
        let mut id = WindowId { epoch, index: 0 };
        let reading = self.runner.join(id, epoch + 1);
        for index in 0..plan.windows(epoch) {
            id.index = index;
            reading.advance(id);
            offsets += reading.window(id).await?.len();
        }
        Ok(offsets)
    }

    /// Whether all epochs have the same number of offsets: no filter draws random values, and no operator derives rows
    /// from a whole window, whose rows change from epoch to epoch.
    pub fn has_equal_epochs(&self) -> bool {
        self.settings().buckets.is_none() && self.core().stage.has_equal_epochs()
    }
}
