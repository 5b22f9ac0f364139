//! Infers columns from all records of JSON lines, while the file is scanned.
//!
//! Every field of every record becomes a column, or a field of a struct. A field's type is inferred from its first
//! values in the first file that has any, so a wrong value later in a file is a bad row, and does not turn numbers into
//! text. Records are walked as they are parsed, without building values.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow::error::ArrowError;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Values of a field that determine its type, and records that must be of types that Arrow has.
const SAMPLE: u32 = 1000;
/// Bounds the memory of files that use values as names.
const FIELDS_MAX: usize = 10_000;

const BOOLEAN: u8 = 1;
const INTEGER: u8 = 2;
const FLOAT: u8 = 4;
const TEXT: u8 = 8;
/// Beside `INTEGER`: a negative one, and one that only 64 bits without a sign hold.
const NEGATIVE: u8 = 16;
const LARGE: u8 = 32;

/// The fields of a file's records so far.
#[derive(Debug, Default)]
pub(super) struct JsonFields {
    root: Node,
    records: u32,
    count: usize,
    /// Why the records at the beginning have no types.
    problem: Option<&'static str>,
    /// Why fields of a record are unknown.
    unwalked: Option<String>,
}

impl JsonFields {
    /// Adds the fields of a line. A line that is not JSON is reported when it is read, and adds none.
    pub(super) fn add(&mut self, line: &[u8]) {
        let line = line.trim_ascii();
        if line.is_empty() || self.count > FIELDS_MAX {
            return;
        }
        self.records = self.records.saturating_add(1);
        if serde_json::from_slice::<IgnoredAny>(line).is_err() {
            return;
        }
        let in_sample = self.records <= SAMPLE;
        if !line.starts_with(b"{") {
            if in_sample {
                self.problem = Some("a record is not an object");
            }
            return;
        }
        let mut parser = serde_json::Deserializer::from_slice(line);
        // The line is JSON, so the walk fails only for too many fields, or too many levels of them.
        if let Err(error) = (Walk { node: &mut self.root, count: &mut self.count }).deserialize(&mut parser) {
            self.unwalked.get_or_insert_with(|| error.to_string());
        }
    }

    /// Adds the fields of a later file, and keeps the types that are known. So memory does not grow with the files.
    pub(super) fn gather(&mut self, file: Self) -> Result<(), ArrowError> {
        if file.records == 0 {
            return Ok(());
        }
        if let Some(unwalked) = file.unwalked.filter(|_| file.count <= FIELDS_MAX) {
            return Err(ArrowError::JsonError(unwalked));
        }
        if let Some(problem) = file.problem.filter(|_| matches!(self.root.kind, Kind::Unknown)) {
            return Err(ArrowError::JsonError(problem.to_owned()));
        }
        self.records = self.records.saturating_add(file.records);
        if file.count <= FIELDS_MAX {
            self.count += self.root.merge(file.root, "")?;
        }
        if self.count.max(file.count) > FIELDS_MAX {
            let message = format!("the records have more than {FIELDS_MAX} different fields");
            return Err(ArrowError::JsonError(message));
        }
        Ok(())
    }

    /// The columns. Those that are null so far are text.
    pub(super) fn columns(&self) -> SchemaRef {
        let fields = match &self.root.kind {
            Kind::Object(object) => object.fields(),
            _ => Fields::empty(),
        };
        Arc::new(Schema::new(fields))
    }
}

/// What is known of a field.
#[derive(Clone, Debug, Default)]
struct Node {
    kind: Kind,
    values: u32,
    /// Why values among the first ones have no common type.
    mixed: Option<&'static str>,
}

const MIXED: &str = "has objects, lists or single values in some records and another kind of value in others";
const MIXED_LIST: &str = "has lists with values of several kinds";

#[derive(Clone, Debug, Default)]
enum Kind {
    /// No value but null.
    #[default]
    Unknown,
    Scalar(u8),
    List(Box<Node>),
    Object(Object),
}

/// Fields in the order of the first record that has them, and of their names in this record.
#[derive(Clone, Debug, Default)]
struct Object {
    fields: Vec<(String, Node)>,
    index: HashMap<String, usize>,
}

impl Object {
    /// The position of a field. Records mostly have their fields in one order, so the next one is tried first.
    fn find(&self, name: &str, next: usize) -> Option<usize> {
        match self.fields.get(next) {
            Some((found, _)) if found == name => Some(next),
            _ => self.index.get(name).copied(),
        }
    }

    fn add(&mut self, name: &str, node: Node) -> usize {
        let at = self.fields.len();
        self.fields.push((name.to_owned(), node));
        self.index.insert(name.to_owned(), at);
        at
    }

    fn sort_from(&mut self, start: usize) {
        self.fields[start..].sort_by(|(a, _), (b, _)| a.cmp(b));
        for (at, (name, _)) in self.fields.iter().enumerate().skip(start) {
            self.index.insert(name.clone(), at);
        }
    }

    fn fields(&self) -> Fields {
        self.fields.iter().map(|(name, node)| Field::new(name, node.data_type(), true)).collect()
    }
}

impl Node {
    /// Whether a value still changes the type.
    fn is_open(&self) -> bool {
        self.values < SAMPLE || matches!(self.kind, Kind::Unknown)
    }

    fn scalar(&mut self, scalar: u8) {
        let is_open = self.is_open();
        self.values = self.values.saturating_add(1);
        match &mut self.kind {
            _ if !is_open => {}
            kind @ Kind::Unknown => *kind = Kind::Scalar(scalar),
            Kind::Scalar(seen) => *seen |= scalar,
            // A single value among lists is read as text, number or boolean of the lists' type, or refused.
            Kind::List(item) => item.scalar(scalar),
            Kind::Object(_) => self.mixed = Some(MIXED),
        }
    }

    /// The items, if lists are values of this field.
    fn list(&mut self) -> Option<&mut Self> {
        let is_open = self.is_open();
        self.values = self.values.saturating_add(1);
        if is_open {
            match &mut self.kind {
                kind @ Kind::Unknown => *kind = Kind::List(Box::default()),
                kind @ Kind::Scalar(_) => {
                    let item = Self { kind: kind.clone(), values: 1, mixed: None };
                    *kind = Kind::List(Box::new(item));
                }
                Kind::List(_) => {}
                Kind::Object(_) => self.mixed = Some(MIXED),
            }
        }
        match &mut self.kind {
            Kind::List(item) => Some(item),
            _ => None,
        }
    }

    /// The fields, if objects are values of this field.
    fn object(&mut self) -> Option<&mut Object> {
        let is_open = self.is_open();
        self.values = self.values.saturating_add(1);
        if let kind @ Kind::Unknown = &mut self.kind {
            *kind = Kind::Object(Object::default());
        }
        match &mut self.kind {
            Kind::Object(object) => Some(object),
            _ => {
                if is_open {
                    self.mixed = Some(MIXED);
                }
                None
            }
        }
    }

    /// Adds the fields of a later file, and keeps the types that are known. Returns the number of new fields. Fails if
    /// the first values of a new field have no common type.
    fn merge(&mut self, later: Self, path: &str) -> Result<usize, ArrowError> {
        match (&mut self.kind, later.kind) {
            (kind @ Kind::Unknown, later_kind) => {
                let later = Self { kind: later_kind, ..later };
                later.check(path)?;
                let new = later.count();
                (*kind, self.values) = (later.kind, later.values);
                Ok(new)
            }
            (Kind::List(item), Kind::List(later)) => item.merge(*later, path),
            (Kind::Object(object), Kind::Object(later)) => {
                let mut new = 0;
                for (name, node) in later.fields {
                    let path = below(path, &name);
                    new += match object.find(&name, usize::MAX) {
                        Some(at) => object.fields[at].1.merge(node, &path)?,
                        None => {
                            node.check(&path)?;
                            let new = 1 + node.count();
                            object.add(&name, node);
                            new
                        }
                    };
                }
                Ok(new)
            }
            _ => Ok(0),
        }
    }

    /// Fails if the first values of the field, or of one inside it, have no common type.
    fn check(&self, path: &str) -> Result<(), ArrowError> {
        if let Some(mixed) = self.mixed {
            return Err(ArrowError::JsonError(format!("column \"{path}\" {mixed}")));
        }
        match &self.kind {
            Kind::List(item) => item.check(path),
            Kind::Object(object) => object.fields.iter().try_for_each(|(name, node)| node.check(&below(path, name))),
            Kind::Unknown | Kind::Scalar(_) => Ok(()),
        }
    }

    /// The number of fields inside.
    fn count(&self) -> usize {
        match &self.kind {
            Kind::List(item) => item.count(),
            Kind::Object(object) => object.fields.iter().map(|(_, node)| 1 + node.count()).sum(),
            Kind::Unknown | Kind::Scalar(_) => 0,
        }
    }

    fn data_type(&self) -> DataType {
        match &self.kind {
            Kind::Unknown => DataType::Utf8,
            Kind::Scalar(BOOLEAN) => DataType::Boolean,
            Kind::Scalar(seen) if seen & !(INTEGER | NEGATIVE) == 0 => DataType::Int64,
            Kind::Scalar(seen) if seen & !(INTEGER | LARGE) == 0 => DataType::UInt64,
            Kind::Scalar(seen) if seen & !(INTEGER | NEGATIVE | LARGE | FLOAT) == 0 => DataType::Float64,
            Kind::Scalar(_) => DataType::Utf8,
            Kind::List(item) => DataType::List(Arc::new(Field::new_list_field(item.data_type(), true))),
            Kind::Object(object) => DataType::Struct(object.fields()),
        }
    }
}

/// Walks a value and adds it to a node. Returns the class of the value.
struct Walk<'a> {
    node: &'a mut Node,
    count: &'a mut usize,
}

/// The classes of values that one list may not mix.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    Null,
    Scalar,
    List,
    Object,
}

impl Walk<'_> {
    fn scalar<E: serde::de::Error>(self, scalar: u8) -> Result<Class, E> {
        self.node.scalar(scalar);
        Ok(Class::Scalar)
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = Class;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Class, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = Class;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Class, E> {
        Ok(Class::Null)
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<Class, E> {
        self.scalar(BOOLEAN)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Class, E> {
        self.scalar(if value < 0 { INTEGER | NEGATIVE } else { INTEGER })
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Class, E> {
        self.scalar(if i64::try_from(value).is_ok() { INTEGER } else { INTEGER | LARGE })
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<Class, E> {
        self.scalar(FLOAT)
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Class, E> {
        self.scalar(TEXT)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Class, A::Error> {
        let is_open = self.node.is_open();
        let Some(node) = self.node.list() else {
            while items.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Class::List);
        };
        let mut class = Class::Null;
        while let Some(next) = items.next_element_seed(Walk { node: &mut *node, count: &mut *self.count })? {
            if class == Class::Null {
                class = next;
            } else if next != Class::Null && next != class && is_open {
                node.mixed = Some(MIXED_LIST);
            }
        }
        Ok(Class::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Class, A::Error> {
        let Some(object) = self.node.object() else {
            while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Class::Object);
        };
        let (start, mut next) = (object.fields.len(), 0);
        while let Some(at) = entries.next_key_seed(Key { object: &mut *object, next, count: &mut *self.count })? {
            if *self.count > FIELDS_MAX {
                return Err(A::Error::custom("too many fields"));
            }
            entries.next_value_seed(Walk { node: &mut object.fields[at].1, count: &mut *self.count })?;
            next = at + 1;
        }
        if object.fields.len() > start {
            object.sort_from(start);
        }
        Ok(Class::Object)
    }
}

/// Finds or adds a field by its name.
struct Key<'a> {
    object: &'a mut Object,
    next: usize,
    count: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = usize;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<usize, E> {
        Ok(self.object.find(name, self.next).unwrap_or_else(|| {
            *self.count += 1;
            self.object.add(name, Node::default())
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(files: &[&str]) -> Result<String, ArrowError> {
        let mut all = JsonFields::default();
        for text in files {
            let mut fields = JsonFields::default();
            text.lines().for_each(|line| fields.add(line.as_bytes()));
            all.gather(fields)?;
        }
        let schema = all.columns();
        let columns: Vec<String> =
            schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect();
        Ok(columns.join(", "))
    }

    #[test]
    fn all_records_of_all_files_give_columns() {
        let check = |files: &[&str], expect: &str| assert_eq!(columns(files).unwrap(), expect, "{files:?}");
        check(&[], "");
        check(&["", "{\"a\": 1}"], "a Int64");
        check(&["{\"b\": 1, \"a\": null}\n{\"c\": 1}"], "a Utf8, b Int64, c Int64");
        let many = "{\"a\": 1}\n".repeat(5000);
        check(&[&format!("{many}{{\"z\": {{\"y\": [1.5]}}}}\n{many}")], "a Int64, z Struct(\"y\": List(Float64))");
        // A value of another type after the sample does not change the type.
        check(&[&format!("{many}{{\"a\": \"none\"}}\n{{\"a\": [1]}}\n{{\"a\": {{\"x\": 1}}}}\n[1]")], "a Int64");
        check(&["{\"a\": 1}", "{\"a\": \"x\", \"b\": true}"], "a Int64, b Boolean");
        check(&["{\"a\": {\"x\": 1}}", "{\"a\": {\"y\": 2}}"], "a Struct(\"x\": Int64, \"y\": Int64)");
        check(&["{\"a\": null}", "{\"a\": 2}"], "a Int64");
        // Nulls do not count as values.
        let nulls = "{\"a\": null}\n".repeat(5000);
        check(&[&format!("{nulls}{{\"a\": 3}}\n{{\"a\": 0.5}}")], "a Float64");
    }

    #[test]
    fn types_are_those_of_arrows_inference() {
        for text in [
            "{\"a\": 1}\n{\"a\": 2.5}\n{\"a\": null}",
            "{\"b\": true, \"a\": 1}\n{\"b\": 1}",
            "{\"a\": \"x\"}\n{\"a\": 1}",
            "{\"a\": 9223372036854775807}",
            "{\"a\": [1, 2.5, null]}\n{\"a\": []}",
            "{\"a\": [[1], [2]]}\n{\"a\": []}",
            "{\"a\": [{\"z\": 1}, {\"y\": \"x\"}]}\n{\"a\": [{\"x\": [true]}]}",
            "{\"c\": {\"d\": {\"b\": 1, \"a\": 2}}}\n{\"a\": 1, \"c\": {\"e\": 1.5}}",
            "{\"a\": 1}\n{\"a\": [2]}",
            "{\"a\": [2]}\n{\"a\": 1.5}",
        ] {
            let (schema, _) = arrow_json::reader::infer_json_schema(text.as_bytes(), None).unwrap();
            let expect: Vec<String> =
                schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type())).collect();
            assert_eq!(columns(&[text]).unwrap(), expect.join(", "), "{text}");
        }
        for text in [
            "[1]",
            "1",
            "{\"a\": [1, {\"q\": 2}]}",
            "{\"a\": [1, [2]]}",
            "{\"a\": {\"b\": 1}}\n{\"a\": 1}",
            "{\"a\": 1}\n{\"a\": {}}",
            "{\"a\": {}}\n{\"a\": []}",
        ] {
            assert!(arrow_json::reader::infer_json_schema(text.as_bytes(), None).is_err(), "{text}");
            assert!(columns(&[text]).is_err(), "{text}");
        }
    }

    #[test]
    fn a_value_of_another_kind_hides_no_field() {
        let check = |files: &[&str], expect: &str| assert_eq!(columns(files).unwrap(), expect, "{files:?}");
        let refused = |files: &[&str], column: &str| {
            let error = columns(files).unwrap_err().to_string();
            assert!(error.contains(&format!("column \"{column}\" has ")), "{files:?}: {error}");
        };
        let many = "{\"a\": {\"x\": 1}}\n".repeat(5000);
        let late = format!("{many}{{\"a\": 1, \"b\": 2}}\n{{\"a\": [{{\"z\": 1}}], \"c\": 3}}");
        check(&[&late], "a Struct(\"x\": Int64), b Int64, c Int64");
        check(&["{\"a\": {\"x\": 1}}", "{\"a\": 1, \"b\": 2}"], "a Struct(\"x\": Int64), b Int64");
        check(&["{\"a\": 1}", "{\"a\": [1, {\"q\": 1}], \"b\": 2}\n{\"a\": {}}"], "a Int64, b Int64");
        // A field has the type of its first values, wherever they are.
        refused(&[&format!("{many}{{\"n\": 1}}\n{{\"n\": {{}}}}")], "n");
        refused(&["{\"a\": 1}", "{\"s\": {\"n\": 1}}\n{\"s\": {\"n\": {}}}"], "s.n");
        refused(&["{\"a\": [1, {\"q\": 2}]}"], "a");
    }

    #[test]
    fn large_integers_keep_their_digits() {
        let check = |text: &str, expect: &str| assert_eq!(columns(&[text]).unwrap(), expect, "{text}");
        check("{\"a\": 9223372036854775808}", "a UInt64");
        check("{\"a\": 18446744073709551615}\n{\"a\": 0}", "a UInt64");
        check("{\"a\": 18446744073709551615}\n{\"a\": -1}", "a Float64");
        check("{\"a\": 18446744073709551616}", "a Float64");
        check("{\"a\": -9223372036854775808}", "a Int64");
        check("{\"a\": 18446744073709551615}\n{\"a\": \"x\"}", "a Utf8");
    }

    #[test]
    fn lines_that_are_not_json_add_nothing() {
        assert_eq!(columns(&["{\"a\": 1, \"b\": 2\n{\"c\": 1}{\"d\": 1}\n{\"a\": true}"]).unwrap(), "a Boolean");
    }

    #[test]
    fn values_as_names_are_refused() {
        let lines: Vec<String> = (0..=FIELDS_MAX).map(|n| format!("{{\"user {n}\": 1}}")).collect();
        let error = columns(&[&lines.join("\n")]).unwrap_err();
        assert!(error.to_string().contains("more than 10000 different fields"), "{error}");
        assert!(columns(&["{\"a\": 1}", &lines.join("\n")]).is_err());
        // All files count together.
        let (some, others) = lines.split_at(FIELDS_MAX / 2);
        assert!(columns(&[&some.join("\n"), &others.join("\n")]).is_err());
        assert!(columns(&[&some.join("\n"), &some.join("\n"), &some.join("\n")]).is_ok());
    }
}
