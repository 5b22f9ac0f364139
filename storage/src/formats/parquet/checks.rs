//! Bounds on what a file claims, checked before the decoder trusts it.
//!
//! The decoder reserves memory for as many row groups, columns, pages and values as a file claims, and recurses into
//! its schema. A file of a few bytes could so end the process, which no `catch_unwind` prevents. The structs are those
//! of `parquet.thrift`, in the format's version 2.12.

use super::thrift::{Kind, Problem, Struct, Walk};

/// Maximum number of elements of a schema. The decoder takes about half a kilobyte for each.
const SCHEMA_ELEMENTS_MAX: usize = 1 << 18;

/// Maximum levels of groups inside each other. A list takes two levels and a map takes three.
const SCHEMA_DEPTH_MAX: usize = 64;

/// Maximum bytes of the columns' paths. Each column has a copy of the names of all groups around it.
const PATH_BYTES_MAX: usize = 64 << 20;

/// The memory for a name in a path, apart from its text.
const NAME_BYTES: usize = size_of::<String>();

/// Maximum number of row groups: they have 16-bit numbers.
const ROW_GROUPS_MAX: usize = i16::MAX as usize;

/// Maximum length of the values of a column of bytes of a fixed length. The decoder takes it for each null, too.
const FIXED_LENGTH_MAX: i32 = 64 << 20;

/// The number of the physical type of bytes of a fixed length.
const FIXED_LEN_BYTE_ARRAY: i32 = 7;

static FILE: Struct = Struct {
    name: "FileMetaData",
    fields: &[
        ("version", Kind::Number),
        ("schema", Kind::List(&Kind::Struct(&SCHEMA_ELEMENT))),
        ("num_rows", Kind::Number),
        ("row_groups", Kind::List(&Kind::Struct(&ROW_GROUP))),
        ("key_value_metadata", Kind::List(&Kind::Struct(&KEY_VALUE))),
        ("created_by", Kind::Binary),
        ("column_orders", Kind::List(&Kind::Struct(&COLUMN_ORDER))),
    ],
};

static SCHEMA_ELEMENT: Struct = Struct {
    name: "SchemaElement",
    fields: &[
        ("type", Kind::Number),
        ("type_length", Kind::Number),
        ("repetition_type", Kind::Number),
        ("name", Kind::Binary),
        ("num_children", Kind::Number),
        ("converted_type", Kind::Number),
        ("scale", Kind::Number),
        ("precision", Kind::Number),
        ("field_id", Kind::Number),
        ("logicalType", Kind::Struct(&LOGICAL_TYPE)),
    ],
};

static LOGICAL_TYPE: Struct = Struct {
    name: "LogicalType",
    fields: &[
        ("STRING", Kind::Struct(&EMPTY)),
        ("MAP", Kind::Struct(&EMPTY)),
        ("LIST", Kind::Struct(&EMPTY)),
        ("ENUM", Kind::Struct(&EMPTY)),
        ("DECIMAL", Kind::Struct(&DECIMAL)),
        ("DATE", Kind::Struct(&EMPTY)),
        ("TIME", Kind::Struct(&TIME)),
        ("TIMESTAMP", Kind::Struct(&TIME)),
        ("INTERVAL", Kind::Skipped),
        ("INTEGER", Kind::Struct(&INTEGER)),
        ("UNKNOWN", Kind::Struct(&EMPTY)),
        ("JSON", Kind::Struct(&EMPTY)),
        ("BSON", Kind::Struct(&EMPTY)),
        ("UUID", Kind::Struct(&EMPTY)),
        ("FLOAT16", Kind::Struct(&EMPTY)),
        ("VARIANT", Kind::Struct(&VARIANT)),
        ("GEOMETRY", Kind::Struct(&GEOGRAPHY)),
        ("GEOGRAPHY", Kind::Struct(&GEOGRAPHY)),
    ],
};

pub(super) static EMPTY: Struct = Struct { name: "an empty struct", fields: &[] };
static DECIMAL: Struct =
    Struct { name: "DecimalType", fields: &[("scale", Kind::Number), ("precision", Kind::Number)] };
static TIME: Struct =
    Struct { name: "TimeType", fields: &[("isAdjustedToUTC", Kind::Bool), ("unit", Kind::Struct(&TIME_UNIT))] };
static TIME_UNIT: Struct = Struct {
    name: "TimeUnit",
    fields: &[("MILLIS", Kind::Struct(&EMPTY)), ("MICROS", Kind::Struct(&EMPTY)), ("NANOS", Kind::Struct(&EMPTY))],
};
static INTEGER: Struct = Struct { name: "IntType", fields: &[("bitWidth", Kind::Byte), ("isSigned", Kind::Bool)] };
static VARIANT: Struct = Struct { name: "VariantType", fields: &[("specification_version", Kind::Byte)] };
static GEOGRAPHY: Struct =
    Struct { name: "GeographyType", fields: &[("crs", Kind::Binary), ("algorithm", Kind::Number)] };

static ROW_GROUP: Struct = Struct {
    name: "RowGroup",
    fields: &[
        ("columns", Kind::List(&Kind::Struct(&COLUMN_CHUNK))),
        ("total_byte_size", Kind::Number),
        ("num_rows", Kind::Number),
        ("sorting_columns", Kind::List(&Kind::Struct(&SORTING_COLUMN))),
        ("file_offset", Kind::Number),
        ("total_compressed_size", Kind::Skipped),
        ("ordinal", Kind::Number),
    ],
};

static SORTING_COLUMN: Struct = Struct {
    name: "SortingColumn",
    fields: &[("column_idx", Kind::Number), ("descending", Kind::Bool), ("nulls_first", Kind::Bool)],
};

static COLUMN_CHUNK: Struct = Struct {
    name: "ColumnChunk",
    fields: &[
        ("file_path", Kind::Binary),
        ("file_offset", Kind::Number),
        ("meta_data", Kind::Struct(&COLUMN_META_DATA)),
        ("offset_index_offset", Kind::Number),
        ("offset_index_length", Kind::Number),
        ("column_index_offset", Kind::Number),
        ("column_index_length", Kind::Number),
    ],
};

static COLUMN_META_DATA: Struct = Struct {
    name: "ColumnMetaData",
    fields: &[
        ("type", Kind::Number),
        ("encodings", Kind::List(&Kind::Number)),
        ("path_in_schema", Kind::Skipped),
        ("codec", Kind::Number),
        ("num_values", Kind::Number),
        ("total_uncompressed_size", Kind::Number),
        ("total_compressed_size", Kind::Number),
        ("key_value_metadata", Kind::Skipped),
        ("data_page_offset", Kind::Number),
        ("index_page_offset", Kind::Number),
        ("dictionary_page_offset", Kind::Number),
        ("statistics", Kind::Struct(&STATISTICS)),
        ("encoding_stats", Kind::List(&Kind::Struct(&PAGE_ENCODING_STATS))),
        ("bloom_filter_offset", Kind::Number),
        ("bloom_filter_length", Kind::Number),
        ("size_statistics", Kind::Struct(&SIZE_STATISTICS)),
        ("geospatial_statistics", Kind::Struct(&GEOSPATIAL_STATISTICS)),
    ],
};

static STATISTICS: Struct = Struct {
    name: "Statistics",
    fields: &[
        ("max", Kind::Binary),
        ("min", Kind::Binary),
        ("null_count", Kind::Number),
        ("distinct_count", Kind::Number),
        ("max_value", Kind::Binary),
        ("min_value", Kind::Binary),
        ("is_max_value_exact", Kind::Bool),
        ("is_min_value_exact", Kind::Bool),
    ],
};

static PAGE_ENCODING_STATS: Struct = Struct {
    name: "PageEncodingStats",
    fields: &[("page_type", Kind::Number), ("encoding", Kind::Number), ("count", Kind::Number)],
};

static SIZE_STATISTICS: Struct = Struct {
    name: "SizeStatistics",
    fields: &[
        ("unencoded_byte_array_data_bytes", Kind::Number),
        ("repetition_level_histogram", Kind::List(&Kind::Number)),
        ("definition_level_histogram", Kind::List(&Kind::Number)),
    ],
};

static GEOSPATIAL_STATISTICS: Struct = Struct {
    name: "GeospatialStatistics",
    fields: &[("bbox", Kind::Struct(&BOUNDING_BOX)), ("geospatial_types", Kind::List(&Kind::Number))],
};

static BOUNDING_BOX: Struct = Struct {
    name: "BoundingBox",
    fields: &[
        ("xmin", Kind::Double),
        ("xmax", Kind::Double),
        ("ymin", Kind::Double),
        ("ymax", Kind::Double),
        ("zmin", Kind::Double),
        ("zmax", Kind::Double),
        ("mmin", Kind::Double),
        ("mmax", Kind::Double),
    ],
};

static KEY_VALUE: Struct = Struct { name: "KeyValue", fields: &[("key", Kind::Binary), ("value", Kind::Binary)] };
static COLUMN_ORDER: Struct = Struct { name: "ColumnOrder", fields: &[("TYPE_ORDER", Kind::Struct(&EMPTY))] };

/// Checks a footer: its encoding, and the bounds on its schema and its row groups.
pub(super) fn check_footer(footer: &[u8]) -> Result<(), Problem> {
    let mut walk = Walk::new(footer);
    let checked = walk.fields(&FILE, |walk, id| match id {
        2 => schema(walk).map(|()| true),
        4 => {
            let of = Kind::Struct(&ROW_GROUP);
            let groups = walk.list(&of)?;
            if groups > ROW_GROUPS_MAX {
                return Err(format!("{groups} row groups, over the limit of {ROW_GROUPS_MAX}"));
            }
            (0..groups).try_for_each(|_| walk.structure(&ROW_GROUP)).map(|()| true)
        }
        _ => Ok(false),
    });
    checked.map_err(|problem| walk.placed(&problem))
}

/// A group of the schema whose elements are being read.
struct OpenGroup {
    /// The elements directly in it that are not yet read.
    missing: usize,
    /// The memory of its path.
    path_bytes: usize,
}

/// Checks the schema: a tree, flattened depth first, in which each group has the number of its children.
fn schema(walk: &mut Walk<'_>) -> Result<(), Problem> {
    let elements = walk.list(&Kind::Struct(&SCHEMA_ELEMENT))?;
    if elements > SCHEMA_ELEMENTS_MAX {
        return Err(format!("a schema of {elements} elements, over the limit of {SCHEMA_ELEMENTS_MAX}"));
    }
    let mut open: Vec<OpenGroup> = Vec::new();
    // Elements that the open groups still claim.
    let mut missing = 0;
    let mut path_bytes = 0;
    for element in 0..elements {
        let (mut name, mut children, mut physical, mut length) = (0, 0, None, 0);
        walk.fields(&SCHEMA_ELEMENT, |walk, id| match id {
            1 => walk.i32().map(|number| physical = Some(number)).map(|()| true),
            2 => walk.i32().map(|number| length = number).map(|()| true),
            4 => walk.binary().map(|len| name = len).map(|()| true),
            5 => walk.i32().map(|count| children = count).map(|()| true),
            _ => Ok(false),
        })?;
        if physical == Some(FIXED_LEN_BYTE_ARRAY) && !(0..=FIXED_LENGTH_MAX).contains(&length) {
            return Err(format!(
                "element {element} of the schema has values of {length} bytes, over the limit of {FIXED_LENGTH_MAX}"
            ));
        }
        let around = match (element, open.last_mut()) {
            (0, _) => 0,
            (_, None) => return Err(format!("element {element} of the schema belongs to no group")),
            (_, Some(group)) => {
                group.missing -= 1;
                missing -= 1;
                group.path_bytes + NAME_BYTES + name
            }
        };
        let left = elements - element - 1;
        let children =
            usize::try_from(children).ok().filter(|children| missing + children <= left).ok_or_else(|| {
                format!("element {element} of the schema claims {children} children, but {left} elements follow it")
            })?;
        missing += children;
        match children {
            0 => path_bytes += around,
            _ if open.len() == SCHEMA_DEPTH_MAX => {
                return Err(format!("groups of the schema are nested over {SCHEMA_DEPTH_MAX} levels deep"));
            }
            _ => open.push(OpenGroup { missing: children, path_bytes: around }),
        }
        if path_bytes > PATH_BYTES_MAX {
            return Err(format!("the names of the schema's columns and their groups exceed {PATH_BYTES_MAX} bytes"));
        }
        while open.pop_if(|group| group.missing == 0).is_some() {}
    }
    Ok(())
}
