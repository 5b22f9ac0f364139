//! The parts of a chat that a model should learn to write.

use minijinja::Value;

use super::Chat;
use super::template::{END, START};

type Segment = (String, bool);

impl Chat {
    /// Returns the text of a chat in segments, with whether each is an answer. No segment is empty.
    pub(super) fn segments(&self, messages: &Value, tools: &Value) -> Result<Vec<Segment>, String> {
        let marked = self.render(messages, tools, false)?;
        match self.template.marks_answers() {
            true => at_marks(&marked),
            false => self.answers(&marked, messages, tools),
        }
    }

    /// Finds the answers of a template that does not mark them. An answer is what its message adds to the messages
    /// before it and the generation prompt.
    fn answers(&self, whole: &str, messages: &Value, tools: &Value) -> Result<Vec<Segment>, String> {
        let all: Vec<Value> = messages.try_iter().map_err(|e| e.to_string())?.collect();
        let mut segments = Vec::new();
        let mut end = 0;
        for (at, message) in all.iter().enumerate() {
            let role = message.get_attr("role").unwrap_or_default();
            if role.as_str() != Some("assistant") {
                continue;
            }
            let text = |count: usize, add_generation_prompt: bool| {
                let part: Value = all[..count].iter().cloned().collect();
                let text = self.render(&part, tools, add_generation_prompt)?;
                match whole.starts_with(&text) && text.len() >= end {
                    true => Ok(text.len()),
                    false => Err(format!(
                        "the answer in message {} cannot be found: the template writes the messages before it in \
                         another way when they stand alone. Put {{% generation %}} and {{% endgeneration %}} around \
                         answers in the template",
                        at + 1
                    )),
                }
            };
            let (start, stop) = (text(at, true)?, text(at + 1, false)?);
            push(&mut segments, &whole[end..start], false);
            push(&mut segments, whole.get(start..stop).unwrap_or_default(), true);
            end = stop.max(start);
        }
        push(&mut segments, &whole[end..], false);
        Ok(segments)
    }
}

/// Cuts a text at the marks of `{% generation %}`.
fn at_marks(marked: &str) -> Result<Vec<Segment>, String> {
    let mut segments = Vec::new();
    let mut is_answer = false;
    let mut rest = marked;
    while let Some(at) = rest.find([START, END]) {
        if rest[at..].starts_with(START) == is_answer {
            return Err("{% generation %} stands in {% generation %}, or the messages hold U+10FFFE".to_owned());
        }
        push(&mut segments, &rest[..at], is_answer);
        is_answer = !is_answer;
        rest = &rest[at + START.len_utf8()..];
    }
    push(&mut segments, rest, is_answer);
    Ok(segments)
}

fn push(segments: &mut Vec<Segment>, text: &str, is_answer: bool) {
    match segments.last_mut() {
        _ if text.is_empty() => {}
        Some((last, kind)) if *kind == is_answer => last.push_str(text),
        _ => segments.push((text.to_owned(), is_answer)),
    }
}
