//! etcd's lock service, which is its concurrency recipe run in the server. By gRPC, which is HTTP/2 with protocol buffers; the few
//! messages are written out here.

use crate::{Error, relay};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http::Request;
use tokio::net::TcpStream;

const NAME: &[u8] = b"handover";
/// In seconds. A run is shorter, so nothing has to keep the lease alive.
const TIME_TO_LIVE: u64 = 600;

pub struct Lock {
    server: String,
    requests: SendRequest<Bytes>,
    lease: u64,
    key: Bytes,
}

impl Lock {
    pub async fn connect(server: &str) -> Result<Self, Error> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let (requests, connection) = h2::client::handshake(stream).await?;
        tokio::spawn(connection);
        let mut lock = Self { server: server.into(), requests, lease: 0, key: Bytes::new() };
        let grant = field(1, Value::Number(TIME_TO_LIVE));
        let granted = lock.call("etcdserverpb.Lease/LeaseGrant", grant).await?;
        match find(granted, 2) {
            Some(Value::Number(lease)) => lock.lease = lease,
            _ => return Err("etcd granted no lease".into()),
        }
        Ok(lock)
    }

    async fn call(&mut self, method: &str, message: BytesMut) -> Result<Bytes, Error> {
        let request = Request::post(format!("http://{}/{method}", self.server))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        // Not compressed, and the length.
        let mut framed = BytesMut::new();
        framed.put_u8(0);
        framed.put_u32(message.len().try_into()?);
        framed.extend(message);

        let mut requests = self.requests.clone().ready().await?;
        let (response, mut body) = requests.send_request(request, false)?;
        body.send_data(framed.freeze(), true)?;
        let mut body = response.await?.into_body();
        let mut answer = BytesMut::new();
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            answer.extend(data);
        }
        let trailers = body.trailers().await?.unwrap_or_default();
        match trailers.get("grpc-status").map(|status| status.as_bytes()) {
            Some(b"0") if answer.len() >= 5 => Ok(answer.freeze().slice(5..)),
            _ => Err(format!("etcd refused {method}: {trailers:?}").into()),
        }
    }
}

impl relay::Lock for Lock {
    async fn acquire(&mut self) -> Result<(), Error> {
        let mut request = field(1, Value::Bytes(Bytes::from_static(NAME)));
        request.extend(field(2, Value::Number(self.lease)));
        let answer = self.call("v3lockpb.Lock/Lock", request).await?;
        match find(answer, 2) {
            Some(Value::Bytes(key)) => self.key = key,
            _ => return Err("etcd named no key".into()),
        }
        Ok(())
    }

    async fn release(&mut self) -> Result<(), Error> {
        let request = field(1, Value::Bytes(self.key.clone()));
        self.call("v3lockpb.Lock/Unlock", request).await?;
        Ok(())
    }
}

/// A field of a protocol buffer. etcd's messages have no other kinds.
enum Value {
    Number(u64),
    Bytes(Bytes),
}

fn field(number: u64, value: Value) -> BytesMut {
    let mut message = BytesMut::new();
    match value {
        Value::Number(value) => {
            put_varint(&mut message, number << 3);
            put_varint(&mut message, value);
        }
        Value::Bytes(value) => {
            put_varint(&mut message, number << 3 | 2);
            put_varint(&mut message, value.len() as u64);
            message.extend(value);
        }
    }
    message
}

fn put_varint(message: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        message.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    message.put_u8(value as u8);
}

fn take_varint(message: &mut Bytes) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = message.try_get_u8().ok()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn find(mut message: Bytes, wanted: u64) -> Option<Value> {
    loop {
        let tag = take_varint(&mut message)?;
        let value = take_varint(&mut message)?;
        let value = match tag & 7 {
            0 => Value::Number(value),
            2 if value <= message.len() as u64 => Value::Bytes(message.split_to(value as usize)),
            _ => return None,
        };
        if tag >> 3 == wanted {
            return Some(value);
        }
    }
}
