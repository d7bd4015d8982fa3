//! JSON for people and for `diff`: indented, but a list inside a list on one line: a table's row, a
//! measurement.

use serde::Serialize;

/// Writes it so.
pub(super) fn to_string<T: Serialize>(value: &T) -> serde_json::Result<String> {
    let mut out = String::new();
    // Open brackets, true for lists, and how many of them there are around a list on one line.
    let (mut open, mut flat) = (Vec::new(), None);
    for line in serde_json::to_string_pretty(value)?.lines() {
        // Line breaks in texts are escaped: a bracket at an end of a line is one of the JSON.
        let text = line.trim_start();
        let ends = text.starts_with([']', '}']);
        if ends {
            open.pop();
        }
        if flat.is_none() {
            out += if out.is_empty() { "" } else { "\n" };
            out += line;
        } else {
            out += if ends || out.ends_with(['[', '{']) { "" } else { " " };
            out += text;
        }
        if flat == Some(open.len()) {
            flat = None;
        }
        if text.ends_with(['[', '{']) {
            let is_list = text.ends_with('[');
            if is_list && open.last() == Some(&true) {
                flat = flat.or(Some(open.len()));
            }
            open.push(is_list);
        }
    }
    Ok(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_row_is_a_line() {
        let value = json!({"rows": [[1.5, "a", null], [{"median": 2, "runs": [3]}]], "title": "t", "none": []});
        let expected = "{\n  \"none\": [],\n  \"rows\": [\n    [1.5, \"a\", null],\n    \
                        [{\"median\": 2, \"runs\": [3]}]\n  ],\n  \"title\": \"t\"\n}";
        assert_eq!(to_string(&value).unwrap(), expected);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "\\PC{0,6}".prop_map(Value::from)
        ];
        leaf.prop_recursive(5, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("\\PC{0,4}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_value_keeps_its_json(value in any_value()) {
            prop_assert_eq!(serde_json::from_str::<Value>(&to_string(&value).unwrap()).unwrap(), value);
        }
    }
}
