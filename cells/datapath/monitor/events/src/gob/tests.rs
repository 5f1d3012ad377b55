// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

fn uint(number: u64) -> String {
    let mut out = Vec::new();
    write_uint(&mut out, number);
    hex::encode(out)
}

fn int(number: i64) -> String {
    let mut out = Vec::new();
    write_int(&mut out, number);
    hex::encode(out)
}

#[test]
fn numbers_have_the_bytes_of_go() {
    assert_eq!(
        [0, 127, 128, 255, 256].map(uint),
        ["00", "7f", "ff80", "ffff", "fe0100"]
    );
    assert_eq!(uint(u64::MAX), "f8ffffffffffffffff");
    assert_eq!([0, 1, -1, 64, -65].map(int), ["00", "02", "01", "ff80", "ff81"]);
    assert_eq!(int(i64::MIN), "f8ffffffffffffffff");
}

#[test]
fn definitions_must_be_new() {
    // {"Slice": {"Elem": int}} as type 65, then as type 18.
    let slice = |id: u8| vec![id, 2, 1, 0, 1, 4, 0, 0];
    let mut stream = Stream::default();

    assert_eq!(stream.read(&[&[0xff][..], &slice(0x81)].concat()), Ok(None));
    assert_eq!(
        stream.read(&[&[0xff][..], &slice(0x81)].concat()),
        Err(GobError::InvalidDefinition(65))
    );
    assert_eq!(stream.read(&slice(35)), Err(GobError::InvalidDefinition(18)));
}

#[test]
fn values_are_read_by_their_types() {
    let mut stream = Stream::default();
    // Type 65: slice of int. Values that are no structure have a zero before them.
    stream.read(&[0xff, 0x81, 2, 1, 0, 1, 4, 0, 0]).unwrap();

    assert_eq!(
        stream.read(&[0xff, 0x82, 0, 2, 2, 1]),
        Ok(Some(Value::List(vec![Value::Int(1), Value::Int(-1)])))
    );
    assert_eq!(stream.read(&[2, 0, 1]), Ok(Some(Value::Bool(true))));
    assert_eq!(
        stream.read(&[8, 0, 0xfe, 0x31, 0x40]),
        Ok(Some(Value::Float(17.0)))
    );
    assert_eq!(stream.read(&[2, 0, 1, 9]), Err(GobError::Trailing(1)));
    assert_eq!(stream.read(&[14, 0, 1]), Err(GobError::Unsupported(7)));
    assert_eq!(stream.read(&[0xff, 0x84, 0, 1]), Err(GobError::UndefinedType(66)));
    assert_eq!(stream.read(&[12, 0, 1, 0xff]), Err(GobError::Text));
    assert_eq!(stream.read(&[6, 0, 0xf7]), Err(GobError::Number(9)));
}

#[test]
fn values_cannot_be_nested_without_end() {
    // Type 65: slice of itself.
    let mut stream = Stream::default();
    stream.read(&[0xff, 0x81, 2, 1, 0, 1, 0xff, 0x82, 0, 0]).unwrap();
    let mut body = vec![0xff, 0x82, 0];
    body.extend([1; 200]);

    assert_eq!(stream.read(&body), Err(GobError::TooDeep));
}

#[test]
fn counts_are_bounded_by_what_is_there() {
    let mut stream = Stream::default();
    stream.read(&[0xff, 0x81, 2, 1, 0, 1, 4, 0, 0]).unwrap();

    assert_eq!(
        stream.read(&[0xff, 0x82, 0, 0xfc, 0xff, 0xff, 0xff, 0xff, 2]),
        Err(GobError::Short)
    );
}

proptest! {
    #[test]
    fn garbage_is_an_error_and_nothing_worse(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..8)) {
        let mut stream = Stream::default();
        for message in messages {
            let _ = frame(&message);
            let _ = stream.read(&message);
            let _ = Stream::first(&message);
        }
    }
}
