#include "worker/data/idx.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "worker/data/byte_source.h"

namespace leeway::worker::data {

namespace {

constexpr std::uint8_t kUnsignedByte = 0x08;
constexpr std::size_t kPiece = 4u << 20;

tl::unexpected<Error> damaged(const std::filesystem::path& path, std::string_view what) {
  return fail(Code::kDataLoss, fmt::format("{}: {}", path.string(), what));
}

Result<std::vector<std::uint32_t>> read_header(const std::filesystem::path& path,
                                               ByteSource& source, std::uint8_t rank) {
  std::array<std::uint8_t, 4> magic{};
  auto got = source.read(magic);
  if (!got) return tl::unexpected(got.error());
  if (*got < magic.size())
    return damaged(path, fmt::format("cut short: {} bytes, no IDX header", *got));
  if (magic[0] != 0 || magic[1] != 0)
    return damaged(path, fmt::format("not an IDX file: it begins with {:02x} {:02x}, not 00 00",
                                     magic[0], magic[1]));
  if (magic[2] != kUnsignedByte)
    return damaged(path, fmt::format("its elements have type {:#04x}; only unsigned bytes (0x08) "
                                     "are read",
                                     magic[2]));
  if (magic[3] != rank)
    return damaged(path, fmt::format("it has {} dimensions where {} are expected", magic[3], rank));

  std::vector<std::uint8_t> bytes(std::size_t{4} * rank);
  got = source.read(bytes);
  if (!got) return tl::unexpected(got.error());
  if (*got < bytes.size()) return damaged(path, "cut short inside its header");
  std::vector<std::uint32_t> dimensions(rank);
  for (std::size_t i = 0; i < dimensions.size(); ++i)
    dimensions[i] = static_cast<std::uint32_t>(bytes[4 * i]) << 24 |
                    static_cast<std::uint32_t>(bytes[4 * i + 1]) << 16 |
                    static_cast<std::uint32_t>(bytes[4 * i + 2]) << 8 | bytes[4 * i + 3];
  return dimensions;
}

}  // namespace

Result<IdxArray> read_idx(const std::filesystem::path& path, std::uint8_t rank) {
  auto source = ByteSource::open(path);
  if (!source) return tl::unexpected(source.error());
  auto dimensions = read_header(path, *source, rank);
  if (!dimensions) return tl::unexpected(dimensions.error());

  const std::string promised = fmt::format("{}", fmt::join(*dimensions, " x "));
  std::uint64_t elements = 1;
  bool overflow = false;
  for (std::uint32_t dimension : *dimensions)
    overflow |= __builtin_mul_overflow(elements, std::uint64_t{dimension}, &elements);
  if (overflow || elements > source->most_bytes())
    return damaged(path, fmt::format("its header promises {} bytes, more than a file of its size "
                                     "can hold",
                                     promised));

  IdxArray array{std::move(*dimensions), {}};
  while (array.elements.size() < elements) {
    const std::size_t had = array.elements.size();
    const std::size_t piece = std::min<std::uint64_t>(kPiece, elements - had);
    array.elements.resize(had + piece);
    const auto got = source->read(std::span(array.elements).subspan(had));
    if (!got) return tl::unexpected(got.error());
    if (*got < piece)
      return damaged(path, fmt::format("cut short: its header promises {} bytes, {} are there",
                                       promised, had + *got));
  }
  // One more byte: proof that there is none, and the check of a gzip file's own checksum.
  std::array<std::uint8_t, 1> extra{};
  const auto got = source->read(extra);
  if (!got) return tl::unexpected(got.error());
  if (*got != 0) return damaged(path, fmt::format("bytes left over after {} elements", promised));
  return array;
}

}  // namespace leeway::worker::data
