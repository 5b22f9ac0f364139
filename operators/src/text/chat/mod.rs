//! `chat_template` and `chat_segments`: messages to the text that a chat model reads.
//!
//! The template is Jinja's, as `transformers` saves it. [`template`] renders it, and [`values`] converts rows and JSON
//! for it.

mod clock;
mod segments;
mod template;
mod values;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanBuilder, ListArray, StringBuilder, StructArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, exec_datafusion_err};
use minijinja::Value;

use self::template::{Source, Template, with_stack};
use super::offset;
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

const MESSAGES: Parameter =
    Parameter::input("messages", TypeClass::Messages, "The messages, each with a `role` and a `content`");
const TEMPLATE: Parameter = Parameter::constant(
    "template",
    ConstantKind::Template,
    "The template, or a file of one: `chat_template.jinja` or `tokenizer_config.json`",
)
.like("'tokenizer_config.json'");
const BOS_TOKEN: Parameter =
    Parameter::constant("bos_token", ConstantKind::Text, "The template's `bos_token`; `''` for the file's").or("''");
const EOS_TOKEN: Parameter =
    Parameter::constant("eos_token", ConstantKind::Text, "The template's `eos_token`; `''` for the file's").or("''");
const VARIABLES: Parameter =
    Parameter::constant("variables", ConstantKind::Text, "More variables of the template, as a JSON object").or("'{}'");
const NOW: Parameter = Parameter::constant(
    "now",
    ConstantKind::Text,
    "The date for `strftime_now`, such as `'2024-07-26'`; `''` refuses templates that ask for it",
)
.or("''");
const TOOLS: Parameter =
    Parameter::input("tools", TypeClass::Messages, "The tools that the model may call, as JSON schemas").or("NULL");

static CHAT_TEMPLATE: Descriptor = Descriptor {
    name: "chat_template",
    version: 2,
    category: "text",
    summary: "Writes messages as the text that a chat model reads",
    parameters: &[
        MESSAGES,
        TEMPLATE,
        Parameter::constant(
            "add_generation_prompt",
            ConstantKind::Boolean,
            "Whether to end with the beginning of an answer",
        )
        .or("false"),
        BOS_TOKEN,
        EOS_TOKEN,
        VARIABLES,
        NOW,
        TOOLS,
    ],
    returns: "Utf8",
    docs: "The messages are a list of structs, or a JSON text. Null fields are left out, since Arrow gives each struct \
           all fields. The text is that of `apply_chat_template(messages, tokenize=False)` in \
           Hugging Face's `transformers`. A `tokenizer_config.json` also gives the special tokens. Tokenize the text \
           with `add_special_tokens => false`, since templates write `bos_token` themselves.\n\nTemplates are Jinja's \
           with Python's methods of strings and dicts, `tojson`, `raise_exception`, `{% break %}` and \
           `{% generation %}`. `raise_exception` makes the row a bad row, and so do more than two million steps. A \
           template cannot read other templates or the clock, since a sample does not depend on them. Null in, null \
           out.",
    source: "Hugging Face's `transformers` 5.23, against which texts are tested; rendered by `minijinja`",
    examples: &[Example {
        sql: "chat_template('[{\"role\": \"user\", \"content\": \"Hi\"}]', template => '{% for m in messages %}<|{{ \
              m.role }}|>{{ m.content }}{% endfor %}')",
        result: "<|user|>Hi",
    }],
    ..Descriptor::BASE
};

static CHAT_SEGMENTS: Descriptor = Descriptor {
    name: "chat_segments",
    version: 2,
    category: "text",
    summary: "Writes messages like chat_template, cut into what the model reads and what it should learn to answer",
    parameters: &[MESSAGES, TEMPLATE, BOS_TOKEN, EOS_TOKEN, VARIABLES, NOW, TOOLS],
    returns: "a list of structs of text, Utf8, and train, Boolean",
    docs: "The texts, joined, are the text of `chat_template`. `tokenize_segments` makes tokens and labels of \
           them.\n\nWhere the template marks answers with `{% generation %}`, the marked text has train, as in \
           `return_assistant_tokens_mask` of Hugging Face's `transformers`. Otherwise a message of the role \
           `assistant` has train: what the template adds for it after the generation prompt, with the end of the turn. \
           If the template writes the messages before it in another way when they stand alone, the row is a bad row: \
           mark the answers in the template. Null in, null out.",
    source: "`return_assistant_tokens_mask` of Hugging Face's `transformers` 5.23",
    examples: &[Example {
        sql: "chat_segments('[{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \
              \"Yes\"}]', template => '{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if \
              add_generation_prompt %}<assistant>{% endif %}')",
        result: "[{text: <user>Hi<assistant>, train: false}, {text: Yes, train: true}]",
    }],
    ..Descriptor::BASE
};

/// The operator `chat_template`.
#[derive(Debug)]
pub(crate) struct ChatTemplate;

/// The operator `chat_segments`.
#[derive(Debug)]
pub(crate) struct ChatSegments;

/// One call's template and its variables, without the messages.
struct Chat {
    template: Template,
    variables: Vec<(String, Value)>,
}

impl Operator for ChatTemplate {
    fn descriptor(&self) -> &'static Descriptor {
        &CHAT_TEMPLATE
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        with_stack(|| Chat::read(arguments, false).map(drop))?;
        Ok(Field::new("text", DataType::Utf8, arguments.field("messages")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        with_stack(|| Self::texts(arguments))
    }
}

impl ChatTemplate {
    fn texts(arguments: &Arguments) -> Result<ArrayRef> {
        let chat = Chat::read(arguments, false)?;
        let add_generation_prompt = arguments.flag("add_generation_prompt")?;
        let mut texts = StringBuilder::new();
        let mut bytes = 0;
        for row in 0..arguments.rows() {
            let Some((messages, tools)) = row_values(arguments, row, CHAT_TEMPLATE.name)? else {
                texts.append_null();
                continue;
            };
            let text = chat.render(&messages, &tools, add_generation_prompt);
            let text = text.map_err(|problem| exec_datafusion_err!("{}: {problem}", CHAT_TEMPLATE.name))?;
            bytes += text.len();
            offset(CHAT_TEMPLATE.name, bytes)?;
            texts.append_value(text);
        }
        Ok(Arc::new(texts.finish()))
    }
}

impl Operator for ChatSegments {
    fn descriptor(&self) -> &'static Descriptor {
        &CHAT_SEGMENTS
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        with_stack(|| Chat::read(arguments, true).map(drop))?;
        let item = Field::new_list_field(DataType::Struct(segment_fields()), false);
        Ok(Field::new("segments", DataType::List(Arc::new(item)), arguments.field("messages")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        with_stack(|| Self::segments(arguments))
    }
}

impl ChatSegments {
    fn segments(arguments: &Arguments) -> Result<ArrayRef> {
        let chat = Chat::read(arguments, true)?;
        let (mut texts, mut train) = (StringBuilder::new(), BooleanBuilder::new());
        let (mut ends, mut valid, mut count, mut bytes) = (vec![0], Vec::new(), 0, 0);
        for row in 0..arguments.rows() {
            let values = row_values(arguments, row, CHAT_SEGMENTS.name)?;
            valid.push(values.is_some());
            if let Some((messages, tools)) = values {
                let segments = chat.segments(&messages, &tools);
                let segments = segments.map_err(|problem| exec_datafusion_err!("{}: {problem}", CHAT_SEGMENTS.name))?;
                for (text, is_trained) in segments {
                    bytes += text.len();
                    offset(CHAT_SEGMENTS.name, bytes)?;
                    texts.append_value(text);
                    train.append_value(is_trained);
                    count += 1;
                }
            }
            ends.push(offset(CHAT_SEGMENTS.name, count)?);
        }
        let columns: Vec<ArrayRef> = vec![Arc::new(texts.finish()), Arc::new(train.finish())];
        let segments = StructArray::try_new(segment_fields(), columns, None)?;
        let item = Arc::new(Field::new_list_field(segments.data_type().clone(), false));
        let nulls = Some(NullBuffer::from(valid)).filter(|nulls| nulls.null_count() > 0);
        Ok(Arc::new(ListArray::try_new(item, OffsetBuffer::new(ends.into()), Arc::new(segments), nulls)?))
    }
}

/// Returns the fields of a segment.
fn segment_fields() -> Fields {
    Fields::from(vec![Field::new("text", DataType::Utf8, false), Field::new("train", DataType::Boolean, false)])
}

/// Returns the messages and the tools of a row, or `None` if the messages are null.
fn row_values(arguments: &Arguments, row: usize, operator: &str) -> Result<Option<(Value, Value)>> {
    let read = |name: &str| {
        let value = values::read(arguments.array(name)?, row);
        value.map_err(|problem| exec_datafusion_err!("{operator}: \"{name}\" {problem}"))
    };
    let messages = read("messages")?;
    if messages.is_none() {
        return Ok(None);
    }
    let messages =
        values::messages(&messages).map_err(|problem| exec_datafusion_err!("{operator}: \"messages\" {problem}"))?;
    let tools = if arguments.is_given("tools") { read("tools")? } else { Value::from(()) };
    Ok(Some((messages, tools)))
}

impl Chat {
    fn read(arguments: &Arguments, keeps_marks: bool) -> Result<Self> {
        for input in ["messages", "tools"].into_iter().filter(|input| arguments.is_given(input)) {
            if let Err(other) = values::check(arguments.field(input)?.data_type()) {
                return arguments.refuse(input, format_args!("hold values of {other}, which JSON does not have"));
            }
        }
        let text = arguments.text("template")?;
        let source = match ConstantKind::Template.is_path(&text) {
            true => match Source::of_file(&text) {
                Ok(source) => source,
                Err(problem) => return arguments.refuse_file("template", problem),
            },
            false => Arc::new(Source::of_text(text)),
        };
        let now = match arguments.text("now")?.as_str() {
            "" => None,
            date => match clock::Date::parse(date) {
                Some(date) => Some(date),
                None => {
                    return arguments.refuse("now", format_args!("must be a date like 2024-07-26, got \"{date}\""));
                }
            },
        };
        let template = match Template::new(source.template(), now, keeps_marks) {
            Ok(template) => template,
            Err(problem) => return arguments.refuse("template", problem),
        };
        let mut variables = source.variables().to_vec();
        let given = arguments.text("variables")?;
        match serde_json::from_str::<Value>(&given).ok().filter(|value| value.as_object().is_some()) {
            Some(object) if object.kind() == minijinja::value::ValueKind::Map => {
                for key in object.try_iter().into_iter().flatten() {
                    let value = object.get_item(&key).unwrap_or_default();
                    variables.push((key.to_string(), value));
                }
            }
            _ => return arguments.refuse("variables", format_args!("must be a JSON object, got \"{given}\"")),
        }
        for name in ["bos_token", "eos_token"] {
            let token = arguments.text(name)?;
            if !token.is_empty() {
                variables.push((name.to_owned(), Value::from(token)));
            }
        }
        Ok(Self { template, variables })
    }

    fn render(&self, messages: &Value, tools: &Value, add_generation_prompt: bool) -> Result<String, String> {
        let given = [
            ("messages", messages.clone()),
            ("tools", tools.clone()),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
        ];
        let given = given.map(|(name, value)| (name.to_owned(), value));
        // Later values replace earlier ones, so `variables` may hold tools and documents.
        let mut all: Vec<(String, Value)> = given.to_vec();
        for (name, value) in &self.variables {
            match name.as_str() {
                "tools" if !tools.is_none() => {}
                "messages" | "add_generation_prompt" => {}
                _ => all.push((name.clone(), value.clone())),
            }
        }
        self.template.render(Value::from_pairs(all))
    }
}

#[cfg(test)]
mod tests;
