//! The message of the process context: the resource, and the keys of what threads publish.
//!
//! The resource is the one that an SDK of OpenTelemetry makes from the environment: from
//! `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, or the executable's name, with a new id.
//!
//! # References
//!
//! `opentelemetry/proto/processcontext/v1development/process_context.proto`,
//! `opentelemetry/proto/common/v1/common.proto`; OTEP 4947, *Thread-Local Reference Data*;
//! OpenTelemetry's resource SDK for the variables.

use std::collections::BTreeMap;
use std::fs;

use dormouse_encode::protobuf::Message;
use dormouse_sys::environment::{self, Variables};
use dormouse_sys::otel::pairs;

/// The key of the attribute that contains the name of the current group.
pub const KEY: &str = "dormouse.group";

/// The schema that present readers support; the standard will call it `tls_v1` when it is stable.
const SCHEMA: &str = "tlsdesc_v1_dev";

/// Resource, attributes; and in the resource, its attributes.
const RESOURCE: u32 = 1;
const ATTRIBUTES: u32 = 2;
const RESOURCE_ATTRIBUTES: u32 = 1;
/// A field of a `KeyValue`.
const NAME: u32 = 1;
const VALUE: u32 = 2;
/// A field of an `AnyValue`, and of an `ArrayValue`.
const STRING: u32 = 1;
const ARRAY: u32 = 5;
const VALUES: u32 = 1;

pub(super) fn message() -> Message {
    let mut resource = Message::default();
    for (key, value) in attributes(environment::variables(), &fallback_name(), uuid()) {
        resource.message(RESOURCE_ATTRIBUTES, &attribute(&key, &text(&value)));
    }
    let (mut keys, mut key_map) = (Message::default(), Message::default());
    keys.message(VALUES, &text(KEY));
    key_map.message(ARRAY, &keys);
    let mut context = Message::default();
    context.message(RESOURCE, &resource);
    context.message(ATTRIBUTES, &attribute("threadlocal.schema_version", &text(SCHEMA)));
    context.message(ATTRIBUTES, &attribute("threadlocal.attribute_key_map", &key_map));
    context
}

fn text(value: &str) -> Message {
    let mut message = Message::default();
    message.bytes(STRING, value.as_bytes());
    message
}

fn attribute(key: &str, value: &Message) -> Message {
    let mut message = Message::default();
    message.bytes(NAME, key.as_bytes());
    message.message(VALUE, value);
    message
}

/// The attributes of the resource, each key once. A list with a member that is none counts for
/// nothing.
fn attributes(
    variables: &Variables,
    fallback_name: &str,
    instance: Option<String>,
) -> BTreeMap<String, String> {
    let name = Some(("service.name".to_owned(), fallback_name.to_owned()));
    let instance = instance.map(|instance| ("service.instance.id".to_owned(), instance));
    let mut all: BTreeMap<_, _> = name.into_iter().chain(instance).collect();
    if let Some(given) = &variables.otel_resource_attributes {
        all.extend(pairs(&given.to_string_lossy()).unwrap_or_default());
    }
    if let Some(name) = &variables.otel_service_name {
        all.insert("service.name".to_owned(), name.to_string_lossy().into_owned());
    }
    all
}

/// The name that SDKs give to a service without one.
fn fallback_name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    format!("unknown_service:{}", name.unwrap_or_default())
}

/// A new one from the kernel.
fn uuid() -> Option<String> {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid").ok()?;
    Some(uuid.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: Option<&str>, given: Option<&str>) -> BTreeMap<String, String> {
        let mut variables = Variables::default();
        variables.otel_service_name = name.map(Into::into);
        variables.otel_resource_attributes = given.map(Into::into);
        attributes(&variables, "unknown_service:x", Some("1-2".to_owned()))
    }

    #[test]
    fn the_resource_follows_the_standard_variables() {
        let plain = of(None, None);
        assert_eq!((&*plain["service.name"], &*plain["service.instance.id"]), ("unknown_service:x", "1-2"));
        let given = of(None, Some("service.name=shop%20d,service.instance.id=7, a = b"));
        assert_eq!((&*given["service.name"], &*given["service.instance.id"]), ("shop d", "7"));
        assert_eq!((&*given["a"], given.len()), ("b", 3));
        assert_eq!(&*of(Some("shopd"), Some("service.name=x"))["service.name"], "shopd");
        assert_eq!(of(None, Some("service.name=x,bad")), plain);
    }
}
