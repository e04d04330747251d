#include "storage/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "storage/output_target.h"

namespace leeway::storage {
namespace {

static_assert(std::endian::native == std::endian::little);

// In the order of the tensors: readers that stream expect the header in file order.
using OrderedJson = nlohmann::ordered_json;
using Json = nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // what the reference implementation accepts
constexpr std::string_view kMetadata = "__metadata__";

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const noexcept { return fd_; }

 private:
  const int fd_;
};

tl::unexpected<Error> system_error(std::string_view what, const std::string& file, int number) {
  const bool full = number == ENOSPC || number == EDQUOT;
  return fail(full ? Code::kResourceExhausted : Code::kInternal,
              fmt::format("cannot {} {}: {}{}", what, file, std::strerror(number),
                          full ? ": free space or write it elsewhere" : ""));
}

class FileWriter : public SafetensorsWriter {
 public:
  // Writes `temporary`, which becomes `file` at the end; with "" it writes into `file` itself.
  FileWriter(std::string file, std::string temporary, int fd, std::uint64_t elements)
      : file_(std::move(file)), temporary_(std::move(temporary)), fd_(fd), left_(elements) {}
  ~FileWriter() override {
    if (!finished_ && !temporary_.empty()) ::unlink(temporary_.c_str());
  }

  Status add(std::span<const float> values) override {
    if (values.size() > left_)
      return fail(Code::kInvalidArgument,
                  fmt::format("{}: more elements than the shapes have", file_));
    left_ -= values.size();
    return write(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }

  Status finish() override {
    if (left_ != 0)
      return fail(Code::kInvalidArgument, fmt::format("{}: {} elements are missing", file_, left_));
    if (!temporary_.empty()) {  // a device or a pipe is not durable
      if (::fsync(fd_.get()) != 0) return system_error("write", file_, errno);
      if (::rename(temporary_.c_str(), file_.c_str()) != 0)
        return system_error("write", file_, errno);
    }
    finished_ = true;
    return {};
  }

  Status write(const char* data, std::size_t size) {
    while (size > 0) {
      const ssize_t wrote = ::write(fd_.get(), data, std::min<std::size_t>(size, 1u << 30));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0) return system_error("write", file_, errno);
      data += wrote;
      size -= static_cast<std::size_t>(wrote);
    }
    return {};
  }

 private:
  const std::string file_, temporary_;
  const Fd fd_;
  std::uint64_t left_;
  bool finished_ = false;
};

class FileReader : public SafetensorsReader {
 public:
  FileReader(std::string file, int fd) : file_(std::move(file)), fd_(fd) {}

  Status load() {
    struct stat info {};
    if (::fstat(fd_.get(), &info) != 0) return system_error("read", file_, errno);
    if (!S_ISREG(info.st_mode)) return bad("it is not a regular file");
    const auto size = static_cast<std::uint64_t>(info.st_size);
    std::uint64_t header = 0;
    if (size < sizeof header) return bad("it is too short");
    if (Status got = read_at(0, &header, sizeof header); !got) return got;
    if (header > kMaxHeaderBytes || header > size - sizeof header)
      return bad(fmt::format("its header would have {} bytes", header));
    std::string text(header, '\0');
    if (Status got = read_at(sizeof header, text.data(), header); !got) return got;
    data_ = sizeof header + header;
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object()) return bad("its header is not JSON");
    try {
      return take_header(json, size - data_);
    } catch (const Json::exception& e) {
      return bad(e.what());
    }
  }

  const std::map<std::string, Tensor>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }

  Status read(const std::string& name, std::uint64_t begin, std::span<float> out) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end())
      return fail(Code::kNotFound, fmt::format("{} has no tensor '{}'", file_, name));
    const Tensor& tensor = found->second;
    if (tensor.dtype != "F32")
      return fail(Code::kUnsupported, fmt::format("{}: tensor '{}' is {}: only F32 can be read",
                                                  file_, name, tensor.dtype));
    const std::uint64_t elements = tensor.bytes / sizeof(float);
    if (begin > elements || out.size() > elements - begin)
      return fail(Code::kInvalidArgument,
                  fmt::format("{}: tensor '{}' has only {} elements", file_, name, elements));
    return read_at(data_ + tensor.begin + begin * sizeof(float), out.data(), out.size_bytes());
  }

 private:
  tl::unexpected<Error> bad(std::string_view why) const {
    return fail(Code::kDataLoss, fmt::format("{} is no whole safetensors file: {}", file_, why));
  }

  Status take_header(const Json& json, std::uint64_t data_bytes) {
    std::map<std::uint64_t, std::uint64_t> ranges;  // begin -> end
    for (const auto& [name, entry] : json.items()) {
      if (name == kMetadata) {
        metadata_ = entry.get<std::map<std::string, std::string>>();
        continue;
      }
      Tensor tensor;
      tensor.dtype = entry.at("dtype").get<std::string>();
      for (const Json& dimension : entry.at("shape").get_ref<const Json::array_t&>()) {
        if (!dimension.is_number_unsigned()) return bad("a dimension of '" + name + "' is no size");
        tensor.shape.push_back(dimension.get<std::int64_t>());
      }
      const Json& offsets = entry.at("data_offsets");
      if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
          !offsets[1].is_number_unsigned())
        return bad("the offsets of '" + name + "' are no offsets");
      tensor.begin = offsets[0].get<std::uint64_t>();
      const auto end = offsets[1].get<std::uint64_t>();
      if (end < tensor.begin || end > data_bytes)
        return bad("tensor '" + name + "' lies outside of it");
      tensor.bytes = end - tensor.begin;
      const auto elements = element_count(tensor.shape);
      if (!elements || (tensor.dtype == "F32" && (*elements > UINT64_MAX / sizeof(float) ||
                                                  *elements * sizeof(float) != tensor.bytes)))
        return bad("the shape of '" + name + "' does not fit its bytes");
      if (tensor.bytes != 0 && !ranges.emplace(tensor.begin, end).second)
        return bad("tensor '" + name + "' shares the bytes of another");
      tensors_.emplace(name, std::move(tensor));
    }
    std::uint64_t covered = 0;
    for (const auto& [begin, end] : ranges) {
      if (begin != covered) return bad("its tensors overlap or leave a gap");
      covered = end;
    }
    if (covered != data_bytes) return bad("bytes follow the last tensor");
    return {};
  }

  Status read_at(std::uint64_t at, void* to, std::size_t size) const {
    auto* out = static_cast<char*>(to);
    while (size > 0) {
      const ssize_t got =
          ::pread(fd_.get(), out, std::min<std::size_t>(size, 1u << 30), static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return system_error("read", file_, errno);
      if (got == 0) return bad("it was cut short");
      out += got;
      at += static_cast<std::uint64_t>(got);
      size -= static_cast<std::size_t>(got);
    }
    return {};
  }

  const std::string file_;
  const Fd fd_;
  std::uint64_t data_ = 0;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// The text of the header; adds up the elements.
Result<std::string> make_header(const std::vector<SafetensorsEntry>& tensors,
                                const std::map<std::string, std::string>& metadata,
                                std::uint64_t& elements) {
  OrderedJson json = OrderedJson::object();
  if (!metadata.empty()) json[std::string(kMetadata)] = metadata;
  std::set<std::string_view> names;
  elements = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    const auto count = element_count(tensor.shape);
    if (!count || *count > (UINT64_MAX / sizeof(float)) - elements)
      return fail(Code::kInvalidArgument, fmt::format("tensor '{}' has no size", tensor.name));
    if (tensor.name == kMetadata || !names.insert(tensor.name).second)
      return fail(Code::kInvalidArgument,
                  fmt::format("a safetensors file cannot hold tensor '{}': the name is taken",
                              tensor.name));
    json[tensor.name] = {
        {"dtype", "F32"},
        {"shape", tensor.shape},
        {"data_offsets", {elements * sizeof(float), (elements + *count) * sizeof(float)}}};
    elements += *count;
  }
  try {
    std::string text = json.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    return text;
  } catch (const Json::exception& e) {
    return fail(Code::kInvalidArgument, fmt::format("a name is not UTF-8: {}", e.what()));
  }
}

}  // namespace

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    const std::string& file, const std::vector<SafetensorsEntry>& tensors,
    const std::map<std::string, std::string>& metadata) {
  std::uint64_t elements = 0;
  const Result<std::string> header = make_header(tensors, metadata, elements);
  if (!header) return tl::unexpected(header.error());
  const OutputTarget target = output_target(file);
  const std::string temporary = target.replace ? target.path + ".tmp" : "";
  const int fd = target.replace
                     ? ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)
                     : ::open(target.path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return system_error("create", file, errno);
  auto writer = std::make_unique<FileWriter>(target.path, temporary, fd, elements);
  const std::uint64_t bytes = header->size();
  if (Status put = writer->write(reinterpret_cast<const char*>(&bytes), sizeof bytes); !put)
    return tl::unexpected(put.error());
  if (Status put = writer->write(header->data(), header->size()); !put)
    return tl::unexpected(put.error());
  return writer;
}

Result<std::unique_ptr<SafetensorsReader>> SafetensorsReader::open(const std::string& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return system_error("open", file, errno);
  auto reader = std::make_unique<FileReader>(file, fd);
  if (Status loaded = reader->load(); !loaded) return tl::unexpected(loaded.error());
  return reader;
}

}  // namespace leeway::storage
