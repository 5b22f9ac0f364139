//! Chat templates against the texts of `transformers`: see `golden/chat.py`.

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::datatypes::Int64Type;
use arrow::util::display::array_value_to_string;
use serde_json::{Value, json};

use crate::testing::{Column, column, golden, select, sql, tokenizer, udf};
use datafusion::logical_expr::{Expr, lit};
use datafusion::prelude::col;

/// Calls an operator of this module on JSON messages, with the constants that are given.
fn call(name: &str, messages: &[&str], constants: &[(&str, Expr)]) -> Result<Column, String> {
    let parameters = crate::registry::find(name).unwrap().descriptor().parameters;
    let argument = |parameter: &crate::descriptor::Parameter| {
        let given = constants.iter().find(|(name, _)| *name == parameter.name).map(|(_, value)| value.clone());
        given.unwrap_or_else(|| match parameter.name {
            "messages" => col("m"),
            _ => lit(parameter.default_value().unwrap()),
        })
    };
    let arguments = parameters.iter().map(argument).collect();
    select(udf(name).call(arguments), vec![column("m", StringArray::from(messages.to_vec()))])
}

fn text(template: &str, messages: &str, constants: &[(&str, Expr)]) -> Result<String, String> {
    let constants = [&[("template", lit(template))], constants].concat();
    Ok(call("chat_template", &[messages], &constants)?.1.as_string::<i32>().value(0).to_owned())
}

const HI: &str = r#"[{"role": "user", "content": "Hi"}]"#;

#[test]
fn texts_are_those_of_transformers() {
    let golden = golden("chat");
    let token = |name: &str| lit(golden["tokens"][name].as_str().unwrap());
    let tokens = [("bos_token", token("bos_token")), ("eos_token", token("eos_token"))];
    let with = |more: (&'static str, Expr)| [tokens.to_vec(), vec![more]].concat();
    for (name, expect) in golden["templates"].as_object().unwrap() {
        let template = expect["template"].as_str().unwrap();
        for (row, chat) in golden["chats"].as_array().unwrap().iter().enumerate() {
            for (kind, constants) in [
                ("texts", tokens.to_vec()),
                ("prompts", with(("add_generation_prompt", lit(true)))),
                ("tools", with(("tools", lit(golden["tools"].as_str().unwrap())))),
            ] {
                let what = format!("{name}, {kind} of {chat}");
                match (text(template, chat.as_str().unwrap(), &constants), &expect[kind][row]) {
                    (Ok(text), Value::String(expect)) => assert_eq!(&text, expect, "{what}"),
                    (Err(_), Value::Object(_)) => {}
                    (got, expect) => panic!("{what}: got {got:?}, not {expect}"),
                }
            }
        }
    }
}

fn segments(template: &str, messages: &str) -> Result<String, String> {
    let constants = [("template", lit(template)), ("bos_token", lit("<s>")), ("eos_token", lit("</s>"))];
    let (_, got) = call("chat_segments", &[messages], &constants)?;
    Ok(array_value_to_string(&got, 0).unwrap())
}

#[test]
fn tokens_and_answers_are_those_of_transformers() {
    let golden = golden("chat");
    let template = golden["templates"]["chatml_marked"]["template"].as_str().unwrap();
    let mut compared = 0;
    for (chat, expect) in golden["chats"].as_array().unwrap().iter().zip(golden["marked"].as_array().unwrap()) {
        let made = call("chat_segments", &[chat.as_str().unwrap()], &[("template", lit(template))]);
        let Ok((field, made)) = made else {
            assert!(expect["error"].is_string(), "{chat}");
            continue;
        };
        let tokenize = format!("tokenize_segments(s, '{}')", tokenizer("gpt2"));
        let (_, tokens) = sql(&tokenize, vec![(field.with_name("s"), made)]).unwrap();
        let list = |name: &str| {
            let list: ArrayRef = tokens.as_struct().column_by_name(name).unwrap().as_list::<i32>().value(0);
            list.as_primitive::<Int64Type>().values().to_vec()
        };
        let (ids, labels) = (list("input_ids"), list("labels"));
        assert_eq!(json!(ids), expect["ids"], "{chat}");
        let mask: Vec<_> = labels.iter().map(|label| i32::from(*label != -100)).collect();
        assert_eq!(json!(mask), expect["mask"], "{chat}");
        assert!(ids.iter().zip(&labels).all(|(id, label)| *label == -100 || id == label));
        compared += 1;
    }
    assert_eq!(compared, 8);
}

#[test]
fn answers_are_found_without_marks() {
    let golden = golden("chat");
    let check = |name: &str, chat: &str, expect: &str| {
        let template = golden["templates"][name]["template"].as_str().unwrap();
        assert_eq!(segments(template, chat).unwrap_or_else(|e| e), expect, "{name}");
    };
    let chat = r#"[{"role": "user", "content": "2?"}, {"role": "assistant", "content": "3"}, {"role": "user", "content": "4?"}, {"role": "assistant", "content": "5"}]"#;
    check(
        "llama2",
        chat,
        "[{text: <s>[INST] 2? [/INST], train: false}, {text:  3 </s>, train: true}, {text: <s>[INST] 4? [/INST], train: \
         false}, {text:  5 </s>, train: true}]",
    );
    check(
        "chatml",
        chat,
        "[{text: <|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n, train: false}, {text: 3<|im_end|>\n, train: \
         true}, {text: <|im_start|>user\n4?<|im_end|>\n<|im_start|>assistant\n, train: false}, {text: 5<|im_end|>\n, \
         train: true}]",
    );
    check("chatml", HI, "[{text: <|im_start|>user\nHi<|im_end|>\n, train: false}]");
    check(
        "qwen3",
        chat,
        "chat_segments: the answer in message 2 cannot be found: the template writes the messages before it in another \
         way when they stand alone. Put {% generation %} and {% endgeneration %} around answers in the template",
    );
}

#[test]
fn marks_stand_alone() {
    let check = |template: &str, expect: &str| {
        assert_eq!(segments(template, HI).unwrap_or_else(|e| e), expect, "{template}");
    };
    check(
        "a{% generation %}b{% endgeneration %}c",
        "[{text: a, train: false}, {text: b, train: true}, {text: c, train: false}]",
    );
    check("{%- generation -%} b {%- endgeneration -%}", "[{text: b, train: true}]");
    check("{% generation %}\nb\n{% endgeneration %}\n", "[{text: b\n, train: true}]");
    let set = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}";
    check(set, "[{text: 2, train: true}, {text: 1, train: false}]");
    let twice = "{% generation %}{% generation %}b{% endgeneration %}{% endgeneration %}";
    check(twice, "chat_segments: {% generation %} stands in {% generation %}, or the messages hold U+10FFFE");
}

#[test]
fn only_tags_are_marks() {
    let chat = r#"[{"role": "user", "content": "2?"}, {"role": "assistant", "content": "3"}]"#;
    let rest = "{% for m in messages %}{{ m.content }}{% endfor %}";
    for (other, shown) in [
        ("{# put {% generation %} here #}", ""),
        ("{# it's #}", ""),
        ("{{ '{% generation %}' }}", "{% generation %}"),
        ("{{ '\\'{% generation %}' }}", "'{% generation %}"),
        ("{% set x = '%}{% generation %}' %}{{ x }}", "%}{% generation %}"),
        ("{%- raw -%} {% generation %}{% endgeneration %} {# {%- endraw %}", "{% generation %}{% endgeneration %} {#"),
    ] {
        let expect = format!("[{{text: {shown}2?, train: false}}, {{text: 3, train: true}}]");
        assert_eq!(segments(&format!("{other}{rest}"), chat).unwrap_or_else(|e| e), expect, "{other}");
        let marked = format!("{other}a{{% generation %}}b{{% endgeneration %}}");
        let expect = format!("[{{text: {shown}a, train: false}}, {{text: b, train: true}}]");
        assert_eq!(segments(&marked, chat).unwrap_or_else(|e| e), expect, "{marked}");
    }
}

#[test]
fn messages_are_structs_or_json() {
    let messages = "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is string else m.content | tojson }}\
                    {% endfor %}";
    let check =
        |json: &str, expect: &str| assert_eq!(text(messages, json, &[]).unwrap_or_else(|e| e), expect, "{json}");
    check(
        r#"[{"role": "a", "content": [{"type": "text", "text": "é", "n": null}]}]"#,
        r#"<a>[{"type": "text", "text": "é", "n": null}]"#,
    );
    check("{}", "chat_template: \"messages\" must be a list of messages, got a map");
    check("[]", "chat_template: \"messages\" must hold a message, got an empty list");
    check("[1]", "chat_template: \"messages\" hold a number where a message should be");
    check("[", "chat_template: \"messages\" are not JSON: EOF while parsing a list at line 1 column 1");
    let rows = "[named_struct('role', 'a', 'content', x, 'n', 1)]";
    let call = format!("chat_template({rows}, '{{{{ messages | tojson }}}}')");
    let got = sql(&call, vec![column("x", StringArray::from(vec![Some("1"), None]))]).unwrap().1;
    let got: Vec<_> = got.as_string::<i32>().iter().flatten().collect();
    assert_eq!(got, [r#"[{"role": "a", "content": "1", "n": 1}]"#, r#"[{"role": "a", "n": 1}]"#]);
    let null = sql(
        &format!("chat_template(x, '{messages}')").replace('\n', ""),
        vec![column("x", StringArray::from(vec![None::<&str>]))],
    );
    assert!(null.unwrap().1.is_null(0));
}

#[test]
fn templates_that_cannot_be_are_refused() {
    let check = |template: &str, expect: &str| {
        let got = text(template, HI, &[]).unwrap_err();
        assert_eq!(got, format!("chat_template: {expect}"), "{template}");
    };
    check(
        "a\n{% if x %}",
        "\"template\" is not a template: syntax error: unexpected end of input, expected end of block, in line 2 of the template",
    );
    check(
        "{% include 'x' %}",
        "\"template\" must not read other templates, and has `include`, in line 1 of the template",
    );
    check(
        "{% extends 'x' %}",
        "\"template\" must not read other templates, and has `extends`, in line 1 of the template",
    );
    check(
        "{% import 'x' as y %}",
        "\"template\" must not read other templates, and has `import`, in line 1 of the template",
    );
    check(
        "{% from 'x' import y %}",
        "\"template\" must not read other templates, and has `from`, in line 1 of the template",
    );
    check(
        "\n{{ raise_exception('no ' ~ messages[0].role) }}",
        "the template refuses the messages: no user, in line 2 of the template",
    );
    check(
        "{{ strftime_now('%Y') }}",
        "the template asks for the date, and a sample must not depend on the clock. Give it one with now => \
         '2024-07-26', in line 1 of the template",
    );
    let for_ever = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ 'x' }}";
    check(for_ever, "the template takes more than 2000000 steps, in line 1 of the template");
    assert!(text("{{ messages.x.y }}", HI, &[]).unwrap_err().contains("undefined value"));
    assert!(text("{{ messages | nothing }}", HI, &[]).unwrap_err().contains("nothing"));
    let missing = text("no/such.jinja", HI, &[]).unwrap_err();
    assert!(
        missing.starts_with("chat_template: \"template\" names a file that cannot be read: \"no/such.jinja\""),
        "{missing}"
    );
    let wrong = text("{{ 1 }}", HI, &[("variables", lit("[1]"))]).unwrap_err();
    assert_eq!(wrong, "chat_template: \"variables\" must be a JSON object, got \"[1]\"");
    let wrong = text("{{ 1 }}", HI, &[("now", lit("today"))]).unwrap_err();
    assert_eq!(wrong, "chat_template: \"now\" must be a date like 2024-07-26, got \"today\"");
}

#[test]
fn recursion_ends_with_an_error() {
    for template in [
        "{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}".to_owned(),
        "{% for a in [[1]] recursive %}{{ loop([a]) }}{% endfor %}".to_owned(),
        format!("{{{{ {}1{} }}}}", "(".repeat(5_000), ")".repeat(5_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(32_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(5_000), "]".repeat(5_000)),
        format!("{}{}", "{% if 1 %}".repeat(5_000), "{% endif %}".repeat(5_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(32_000)),
        format!("{{{{ x{} }}}}", ".y".repeat(60_000)),
        format!("{{{{ 1{} }}}}", "|string".repeat(16_000)),
        "{% set ns = namespace(x=[]) %}{% for i in range(20000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}"
            .to_owned(),
        "{% set ns = namespace(x=[]) %}{% for i in range(20000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}".to_owned(),
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.x = [ns.x] %}\
         {% endfor %}{% endfor %}{{ ns.x == ns.x }}"
            .to_owned(),
        " ".repeat((1 << 17) + 1),
    ] {
        // What matters is that the process goes on. A long sum may have a result.
        let _ = text(&template, HI, &[]);
    }
    let deep = format!("[{}1{}]", "[".repeat(5_000), "]".repeat(5_000));
    assert!(text("{{ messages }}", &deep, &[]).unwrap_err().contains("recursion limit"));
}

#[test]
fn variables_and_files_give_what_a_template_asks_for() {
    let check = |template: &str, constants: &[(&str, Expr)], expect: &str| {
        assert_eq!(text(template, HI, constants).unwrap(), expect);
    };
    check(
        "{{ x }}{{ y.z }}{{ documents }}",
        &[("variables", lit(r#"{"x": 1, "y": {"z": "é"}, "documents": [2]}"#))],
        "1é[2]",
    );
    check("{{ messages | length }}{{ tools }}", &[("variables", lit(r#"{"messages": [], "tools": "t"}"#))], "1t");
    check("{{ strftime_now('%d %b %Y') }}", &[("now", lit("2024-07-26"))], "26 Jul 2024");
    let folder = std::env::temp_dir().join(format!("forebay-chat-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let config = json!({
        "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
        "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "pad_token": null,
    });
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let whole = file("tokenizer_config.json", &config.to_string());
    check(&whole, &[], "<s>Hi</s>");
    check(&whole, &[("eos_token", lit("<end>"))], "<s>Hi<end>");
    let named = json!({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]});
    check(&file("named.json", &named.to_string()), &[], "d");
    check(&file("chat_template.jinja", "{{ messages[0].role }}\n"), &[], "user");
    let none = text(&file("none.json", "{}"), HI, &[]).unwrap_err();
    assert!(none.ends_with("none.json\": it has no \"chat_template\""), "{none}");
    std::fs::remove_dir_all(folder).unwrap();
}
