//! etcd: for the line its lock service, which is its concurrency recipe run in the server, else a lease and a transaction that makes the key only
//! if it is not there. By gRPC, which is HTTP/2 with protocol buffers; the few messages are written out here.

use crate::slot::Client;
use crate::{Error, relay};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http::Request;
use tokio::net::TcpStream;

const NAME: &[u8] = b"handover";
/// In seconds. A run is shorter, so nothing has to keep the lease alive.
const TIME_TO_LIVE: u64 = 3600;

pub struct Etcd {
    server: String,
    requests: SendRequest<Bytes>,
    lease: u64,
    key: Bytes,
}

impl Etcd {
    pub async fn connect(server: &str) -> Result<Self, Error> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let (requests, connection) = h2::client::handshake(stream).await?;
        tokio::spawn(connection);
        let mut etcd = Self { server: server.into(), requests, lease: 0, key: Bytes::new() };
        etcd.lease = etcd.grant().await?;
        Ok(etcd)
    }

    async fn grant(&mut self) -> Result<u64, Error> {
        let grant = field(1, Value::Number(TIME_TO_LIVE));
        match find(self.call("etcdserverpb.Lease/LeaseGrant", grant).await?, 2) {
            Some(Value::Number(lease)) => Ok(lease),
            _ => Err("etcd granted no lease".into()),
        }
    }

    /// With it goes the key.
    async fn revoke(&mut self, lease: u64) -> Result<(), Error> {
        let request = field(1, Value::Number(lease));
        self.call("etcdserverpb.Lease/LeaseRevoke", request).await.map(drop)
    }

    async fn keep_alive(&mut self) -> Result<(), Error> {
        let request = field(1, Value::Number(self.lease));
        match find(self.call("etcdserverpb.Lease/LeaseKeepAlive", request).await?, 3) {
            Some(Value::Number(1..)) => Ok(()),
            _ => Err("the lease of etcd is lost".into()),
        }
    }

    /// Makes the key, if it is not there.
    async fn make(&mut self, key: &Bytes, lease: u64) -> Result<bool, Error> {
        let bytes =
            |number, value: &[u8]| field(number, Value::Bytes(Bytes::copy_from_slice(value)));
        // The revision at which it was made is equal to zero.
        let mut compare = field(1, Value::Number(0));
        compare.extend(field(2, Value::Number(1)));
        compare.extend(bytes(3, key));
        compare.extend(field(5, Value::Number(0)));
        let mut put = bytes(1, key);
        put.extend(bytes(2, b"bench"));
        put.extend(field(3, Value::Number(lease)));
        let mut request = bytes(1, &compare);
        request.extend(bytes(2, &bytes(2, &put)));
        let answer = self.call("etcdserverpb.KV/Txn", request).await?;
        Ok(matches!(find(answer, 2), Some(Value::Number(1))))
    }

    async fn delete(&mut self, key: &Bytes) -> Result<(), Error> {
        let request = field(1, Value::Bytes(key.clone()));
        match find(self.call("etcdserverpb.KV/DeleteRange", request).await?, 2) {
            Some(Value::Number(1)) => Ok(()),
            _ => Err("there was nothing to delete in etcd".into()),
        }
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

impl relay::Lock for Etcd {
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

/// A lease for each acquisition, revoked with the release.
pub struct LeaseEach(pub Etcd, pub usize);

impl Client for LeaseEach {
    async fn call(&mut self, number: usize) -> Result<(), Error> {
        let lease = self.0.grant().await?;
        if !self.0.make(&job(self.1, number), lease).await? {
            return Err("somebody else has it".into());
        }
        self.0.revoke(lease).await
    }
}

/// One lease for all that the client acquires.
pub struct LeaseKept(pub Etcd, pub usize);

impl Client for LeaseKept {
    async fn call(&mut self, number: usize) -> Result<(), Error> {
        let (key, lease) = (job(self.1, number), self.0.lease);
        if !self.0.make(&key, lease).await? {
            return Err("somebody else has it".into());
        }
        self.0.delete(&key).await
    }
}

fn job(client: usize, number: usize) -> Bytes {
    format!("job-{client}-{}", number % 16).into()
}

pub struct Heartbeat(pub Etcd);

impl Client for Heartbeat {
    async fn call(&mut self, _number: usize) -> Result<(), Error> {
        self.0.keep_alive().await
    }
}

pub struct Refused(Etcd);

const HELD: Bytes = Bytes::from_static(b"held");

impl Refused {
    pub async fn start(mut etcd: Etcd) -> Result<Self, Error> {
        let lease = etcd.lease;
        etcd.make(&HELD, lease).await?;
        Ok(Self(etcd))
    }
}

impl Client for Refused {
    async fn call(&mut self, _number: usize) -> Result<(), Error> {
        let lease = self.0.lease;
        if self.0.make(&HELD, lease).await? { Err("it was free".into()) } else { Ok(()) }
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
