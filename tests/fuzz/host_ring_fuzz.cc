// libFuzzer target: a ring of messages in which the other side writes what it likes.
//
// The input is, for the reader's ring and then for the writer's: steps of { 1 field, 8 value }.
// Fields 0 to 3 are those of the header; 4 puts the value as the size of the record at the reader's
// place; more than that take or put a message.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "transport/host_ring.h"

namespace {

using namespace leeway::transport;

struct Shared {
  explicit Shared(int descriptor)
      : bytes(static_cast<std::byte*>(
            mmap(nullptr, kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0))) {
    if (bytes == MAP_FAILED) std::abort();
  }
  ~Shared() { munmap(bytes, kRingBytes); }
  RingHeader& header() const { return *reinterpret_cast<RingHeader*>(bytes); }
  std::byte* bytes;
};

void change(const Shared& shared, std::uint8_t field, std::uint64_t value) {
  RingHeader& header = shared.header();
  const auto place = header.head.load() % kRingRoom;
  switch (field) {
    case 0:
      return header.tail.store(value);
    case 1:
      return header.head.store(value);
    case 2:
      return header.receiver_asleep.store(static_cast<std::uint32_t>(value));
    case 3:
      return header.sender_waits.store(static_cast<std::uint32_t>(value));
    default:
      if (place + sizeof value <= kRingRoom)
        std::memcpy(shared.bytes + kRingRecords + place, &value, sizeof value);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FileDescriptor descriptor;
  auto writer = RingWriter::make(descriptor);
  if (!writer) return 0;
  auto reader = RingReader::open(descriptor.get());
  if (!reader) std::abort();
  const Shared shared(descriptor.get());
  std::byte message[kRingMessage];
  for (; size >= 9; data += 9, size -= 9) {
    std::uint64_t value = 0;
    std::memcpy(&value, data + 1, sizeof value);
    const std::uint8_t field = data[0] % 8;
    if (field < 5) {
      change(shared, field, value);
    } else if (field == 5) {
      (void)writer->put(std::span(message).first(value % (kRingMessage + 1)));
      (void)writer->receiver_sleeps();
    } else {
      std::size_t length = 0;
      if (reader->get(message, length) == RingReader::Get::kMessage && length > kRingMessage)
        std::abort();
      (void)reader->empty();
      (void)reader->sender_waits();
    }
  }
  return 0;
}
