//! Slices as Flight messages.

use arrow::datatypes::SchemaRef;
use arrow_flight::FlightData;
use forebay_engine::Error;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tonic::{Response, Status};

use super::{SliceSender, WindowSlice};
use crate::encode::{self, OutgoingMessage, RawBody};
use crate::status::{forbidden, status};

/// Answers a `DoGet`.
pub(crate) struct FlightSender;

impl SliceSender for FlightSender {
    type Answer = Result<Response<BoxStream<'static, Result<FlightData, Status>>>, Status>;

    fn send(&self, slice: WindowSlice) -> Self::Answer {
        let WindowSlice { schema, pieces } = slice;
        let first = OutgoingMessage::from(encode::schema(&schema));
        let messages = pieces.then(move |piece| {
            let schema = SchemaRef::clone(&schema);
            async move { encode::piece(piece?, &schema).await }
        });
        let messages = stream::once(async { Ok(first) }).chain(messages.map_err(|error| status(&error)));
        Ok(RawBody::answer(messages.boxed(), stream::empty().boxed()))
    }

    fn refuse(&self, why: &Error) -> Self::Answer {
        Err(forbidden(why))
    }
}
