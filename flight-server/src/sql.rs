//! Flight SQL, for tools that show tables: lists tables and pipelines, and previews their rows.
//!
//! Pipelines and tables are two schemas without a catalog. A statement is a
//! [`TablePreview`](forebay_engine::TablePreview): `SELECT * FROM` a pipeline or a table, or any query if the session
//! lets clients run it. Feeds are read with this server's own tickets (`service.rs`).
//!
//! <https://arrow.apache.org/docs/format/FlightSql.html>

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::sql::metadata::{SqlInfoData, SqlInfoDataBuilder};
use arrow_flight::sql::{Any, Command, ProstMessageExt, SqlInfo, TicketStatementQuery};
use arrow_flight::{FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, Ticket};
use forebay_engine::{ErrorKind, Session};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message;
use tonic::Status;

use crate::status::{failure, status, unsendable_schema};

const URL: &str = "type.googleapis.com/arrow.flight.protocol.sql.";
const PIPELINES: &str = "pipelines";
const TABLES: &str = "tables";

/// Decodes the Flight SQL command in a descriptor or ticket, if it is one.
pub(crate) fn command(bytes: &[u8]) -> Option<Command> {
    let any = Any::decode(bytes).ok().filter(|any| any.type_url.starts_with(URL))?;
    Command::try_from(any).ok()
}

/// The schema of a command's result, and the ticket to fetch it.
pub(crate) async fn info(
    session: &Session,
    descriptor: FlightDescriptor,
    command: Command,
) -> Result<FlightInfo, Status> {
    let (schema, ticket) = match command {
        Command::CommandStatementQuery(statement) => {
            let preview = session.table_preview(&statement.query).await.map_err(|error| status(&error))?;
            // The statement is its own handle, so the server keeps no state.
            (preview.schema(), TicketStatementQuery { statement_handle: statement.query.into() }.as_any())
        }
        other => {
            let ticket = other.clone().into_any();
            (rows_of(session, other).await?.schema(), ticket)
        }
    };
    let endpoint = FlightEndpoint::new().with_ticket(Ticket::new(ticket.encode_to_vec()));
    let info = FlightInfo::new().with_descriptor(descriptor).with_endpoint(endpoint).with_ordered(true);
    info.try_with_schema(&schema).map_err(|error| unsendable_schema(&error))
}

/// The messages with the rows of a command.
pub(crate) async fn rows(
    session: &Session,
    command: Command,
) -> Result<BoxStream<'static, Result<FlightData, Status>>, Status> {
    let encoder = FlightDataEncoderBuilder::new();
    let messages = match command {
        Command::TicketStatementQuery(ticket) => {
            let query = std::str::from_utf8(&ticket.statement_handle)
                .map_err(|_| failure(ErrorKind::Invalid, "the ticket's handle is not a statement of this server"))?;
            let preview = session.table_preview(query).await.map_err(|error| status(&error))?;
            let rows = session.preview_rows(&preview).map_err(|error| status(&error))?.into_stream();
            encoder.with_schema(preview.schema()).build(rows.map_err(|error| FlightError::from(status(&error))))
        }
        other => {
            let rows = rows_of(session, other).await?;
            encoder.with_schema(rows.schema()).build(stream::iter([Ok(rows)]))
        }
    };
    Ok(messages.map_err(Status::from).boxed())
}

/// The rows of a command that describes the server.
async fn rows_of(session: &Session, command: Command) -> Result<RecordBatch, Status> {
    let built = match command {
        Command::CommandGetCatalogs(catalogs) => catalogs.into_builder().build(),
        Command::CommandGetDbSchemas(schemas) => {
            let mut schemas = schemas.into_builder();
            schemas.append("", PIPELINES);
            schemas.append("", TABLES);
            schemas.build()
        }
        Command::CommandGetTableTypes(types) => {
            let mut types = types.into_builder();
            types.append("PIPELINE");
            types.append("TABLE");
            types.build()
        }
        Command::CommandGetTables(tables) => {
            let mut tables = tables.into_builder();
            let named = |kind: &'static str| move |(name, schema): (String, SchemaRef)| (kind, name, schema);
            let pipelines = session.pipelines().into_iter().filter(|name| !name.starts_with('_'));
            let pipelines = pipelines.filter_map(|name| Some((session.pipeline(&name).ok()?.schema(), name)));
            let all = pipelines
                .map(|(schema, name)| (name, schema))
                .map(named(PIPELINES))
                .chain(session.tables().into_iter().map(named(TABLES)));
            for (room, name, schema) in all {
                let kind = if room == PIPELINES { "PIPELINE" } else { "TABLE" };
                tables.append("", room, name, kind, &schema).map_err(Status::from)?;
            }
            tables.build()
        }
        Command::CommandGetSqlInfo(info) => info.into_builder(&sql_info()?).build(),
        other => {
            let name = other.type_url().trim_start_matches(URL).to_owned();
            let message = format!("{name} is not supported: Flight SQL only previews tables and pipelines here");
            return Err(failure(ErrorKind::Unsupported, message));
        }
    };
    built.map_err(Status::from)
}

fn sql_info() -> Result<SqlInfoData, Status> {
    let mut info = SqlInfoDataBuilder::new();
    info.append(SqlInfo::FlightSqlServerName, "Forebay");
    info.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    info.append(SqlInfo::FlightSqlServerArrowVersion, "1.3");
    info.append(SqlInfo::FlightSqlServerReadOnly, true);
    info.build().map_err(Status::from)
}
