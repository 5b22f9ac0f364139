//! `CREATE EXTERNAL TABLE`: DataFusion's statement without the clauses that Forebay does not support.
//!
//! Ignoring a parsed clause is worse than refusing it. So every clause that storage does not support is refused here,
//! at its place.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::TableReference;
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::logical_expr::planner::ContextProvider;
use datafusion::logical_expr::{AggregateUDF, HigherOrderUDF, ScalarUDF, TableSource, WindowUDF};
use datafusion::sql::parser::{CreateExternalTable, Statement as ParsedStatement};
use datafusion::sql::planner::{ParserOptions, SqlToRel};
use datafusion::sql::sqlparser::ast::{ColumnDef, ColumnOption, Ident, ObjectName, Spanned, Value};
use datafusion::sql::sqlparser::tokenizer::Token;

use crate::depth;
use crate::error::{Error, Place, Result};
use crate::statement::{Statement, TableDefinition};
use crate::tokens::Tokens;
use forebay_diagnostics::plain_message;

/// Checks a parsed statement and extracts the parts that Forebay uses.
pub(crate) fn definition(parsed: ParsedStatement, place: Place, tokens: &Tokens) -> Result<Statement> {
    let ParsedStatement::CreateExternalTable(parsed) = parsed else {
        return Err(Error::new("expected EXTERNAL TABLE after CREATE").with_place(place));
    };
    // Destructured without `..`: a clause added by a new version of the parser must be used or refused here.
    let CreateExternalTable {
        name,
        columns,
        file_type,
        mut locations,
        table_partition_cols,
        order_exprs,
        if_not_exists,
        or_replace,
        temporary,
        unbounded,
        options,
        constraints,
    } = parsed;
    let refuse = |words: &[&str], message: &str, hint: &str| {
        let place = tokens.next(place, words).unwrap_or(place);
        Err(Error::new(message).with_place(place).with_hint(hint))
    };
    if unbounded {
        return refuse(
            &["UNBOUNDED"],
            "UNBOUNDED tables are not supported: an epoch must end",
            "leave the word out; new files enter with the next snapshot",
        );
    }
    if temporary {
        let word = if tokens.next(place, &["TEMPORARY", "TABLE"]).is_some() { "TEMPORARY" } else { "TEMP" };
        return refuse(&[word], "temporary tables are not supported: no session would drop them", "leave the word out");
    }
    if !order_exprs.is_empty() {
        return refuse(
            &["WITH", "ORDER"],
            "WITH ORDER is not supported: a feed's order comes from the files' order or from its seed",
            "leave it out",
        );
    }
    if !constraints.is_empty() {
        return refuse(&[], "table constraints are not supported: they would not be checked", "leave them out");
    }
    let (name, name_place) = table_name(&name, place)?;
    let location_place = tokens.next(name_place, &["LOCATION"]).and_then(|keyword| tokens.after(keyword, 1));
    let location_place = location_place.unwrap_or(place);
    if locations.len() > 1 {
        return Err(Error::new("a table has one LOCATION")
            .with_place(location_place)
            .with_hint("name the folder that holds all files, or use a pattern such as 'photos/*.parquet'"));
    }
    let location = locations.pop().unwrap_or_default();
    if location.is_empty() {
        return Err(Error::new("LOCATION is empty").with_place(location_place));
    }
    let stored_as = tokens.next(name_place, &["STORED", "AS"]).and_then(|keyword| tokens.after(keyword, 2));
    let options_place = tokens.next(name_place, &["OPTIONS"]).unwrap_or(place);
    let partitions_place = tokens.next(name_place, &["PARTITIONED", "BY"]).unwrap_or(place);
    let partitions = partition_names(&table_partition_cols, partitions_place)?;
    let options = table_options(options, options_place)?;
    let option_places =
        options.iter().map(|(key, _)| tokens.option(options_place, key).unwrap_or(options_place)).collect();
    let (columns, path_columns) = split(schema(columns, name_place)?, &partitions);
    Ok(Statement::CreateTable(TableDefinition {
        name,
        or_replace,
        if_not_exists,
        file_type,
        file_type_place: stored_as.unwrap_or(place),
        location,
        location_place,
        columns,
        path_columns,
        options,
        option_places,
        place,
        name_place,
    }))
}

fn table_name(name: &ObjectName, place: Place) -> Result<(String, Place)> {
    let place = Place::start(name.span()).unwrap_or(place);
    match name.0.as_slice() {
        [part] => match part.as_ident() {
            Some(ident) if !ident.value.is_empty() => Ok((normalized(ident), place)),
            _ => Err(Error::new("expected a table's name").with_place(place)),
        },
        _ => Err(Error::new(format!("names have one part, got {name}"))
            .with_place(place)
            .with_hint("schemas and catalogs are not supported; quote a name that has a period in it")),
    }
}

/// The names in `PARTITIONED BY`, which the parser returns as they are written.
fn partition_names(written: &[String], place: Place) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::with_capacity(written.len());
    for text in written {
        let tokens = Tokens::of(text)?;
        let name = match tokens.iter().next().map(|token| &token.token) {
            Some(Token::Word(word)) if word.quote_style.is_none() => word.value.to_lowercase(),
            Some(Token::Word(word)) => word.value.clone(),
            Some(Token::SingleQuotedString(name)) => name.clone(),
            _ => return Err(Error::new(format!("expected a column's name, got {text}")).with_place(place)),
        };
        if names.contains(&name) {
            return Err(Error::new(format!("PARTITIONED BY names column \"{name}\" twice")).with_place(place));
        }
        names.push(name);
    }
    Ok(names)
}

fn normalized(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

fn table_options(options: Vec<(String, Value)>, place: Place) -> Result<Vec<(String, String)>> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for (key, value) in options {
        let key = key.to_lowercase();
        if pairs.iter().any(|(other, _)| *other == key) {
            return Err(Error::new(format!("option \"{key}\" is given twice")).with_place(place));
        }
        let value = match value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) | Value::EscapedStringLiteral(text) => {
                text
            }
            other => other.to_string(),
        };
        pairs.push((key, value));
    }
    Ok(pairs)
}

/// The Arrow types of declared columns, in DataFusion's mapping.
fn schema(columns: Vec<ColumnDef>, place: Place) -> Result<Option<SchemaRef>> {
    if columns.is_empty() {
        return Ok(None);
    }
    for (index, column) in columns.iter().enumerate() {
        let place = Place::start(column.name.span).unwrap_or(place);
        let name = normalized(&column.name);
        if columns[..index].iter().any(|other| normalized(&other.name) == name) {
            return Err(Error::new(format!("column \"{name}\" is declared twice")).with_place(place));
        }
        if let Some(option) =
            column.options.iter().find(|option| !matches!(option.option, ColumnOption::Null | ColumnOption::NotNull))
        {
            return Err(Error::new(format!(
                "column \"{name}\": `{}` is not supported: it would not be applied",
                option.option
            ))
            .with_place(place)
            .with_hint("a column has a name, a type and at most NOT NULL"));
        }
    }
    // Readers of JSON and CSV infer Utf8, so a declared text column uses the same type.
    let options = ParserOptions::new().with_map_string_types_to_utf8view(false);
    let context = NoContext { options: ConfigOptions::default() };
    let planner = SqlToRel::new_with_options(&context, options);
    let mut fields = Vec::with_capacity(columns.len());
    for column in columns {
        let place = Place::start(column.name.span).unwrap_or(place);
        let name = normalized(&column.name);
        depth::check_type(&column.data_type, place)?;
        let one = planner.build_schema(vec![column]).map_err(|error| {
            let message = error.find_root().message().into_owned();
            Error::new(format!("column \"{name}\": {}", plain_message(&message))).with_place(place)
        })?;
        fields.extend(one.fields().iter().cloned());
    }
    Ok(Some(Arc::new(Schema::new(fields))))
}

/// The columns in the files, and those of `PARTITIONED BY`, which the parser puts among them if they have types.
fn split(declared: Option<SchemaRef>, partitions: &[String]) -> (Option<SchemaRef>, Option<SchemaRef>) {
    if partitions.is_empty() {
        return (declared, None);
    }
    let fields = declared.map(|schema| schema.fields().to_vec()).unwrap_or_default();
    let of_path = partitions.iter().map(|name| {
        let found = fields.iter().find(|field| field.name() == name).cloned();
        found.unwrap_or_else(|| Arc::new(Field::new(name, DataType::Null, true)))
    });
    let of_path: Vec<FieldRef> = of_path.collect();
    let of_files: Vec<FieldRef> = fields.iter().filter(|field| !partitions.contains(field.name())).cloned().collect();
    let of_files = (!of_files.is_empty()).then(|| Arc::new(Schema::new(of_files)));
    (of_files, Some(Arc::new(Schema::new(of_path))))
}

/// Mapping types needs only the planner's options.
struct NoContext {
    options: ConfigOptions,
}

impl ContextProvider for NoContext {
    fn get_table_source(&self, name: TableReference) -> DataFusionResult<Arc<dyn TableSource>> {
        Err(DataFusionError::Plan(format!("table '{name}' not found")))
    }

    fn get_function_meta(&self, _name: &str) -> Option<Arc<ScalarUDF>> {
        None
    }

    fn get_higher_order_meta(&self, _name: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, _name: &str) -> Option<Arc<AggregateUDF>> {
        None
    }

    fn get_window_meta(&self, _name: &str) -> Option<Arc<WindowUDF>> {
        None
    }

    fn get_variable_type(&self, _variable_names: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.options
    }

    fn udf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
    }
}
